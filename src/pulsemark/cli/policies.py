"""`pulsemark policies get|set|unset NAMESPACE|TOPIC POLICY`: a running broker's policies.

`pulsemark policies show NAMESPACE|TOPIC` lists all that are set there.

The command calls the broker's HTTP port (`--admin-url`). A target `tenant/namespace` is a
namespace; any other target is a topic, in short or full form. POLICY is one of docs/policies.md.
Policies without options of their own have JSON as value (`--value`), as in Pulsar's REST calls. A
backlog quota has a type (`--type`); `get` shows the quotas of all types.

`get` prints the policy of the target itself. With `--applied` it prints the policy that is in force
for the topic: its own, its namespace's or the broker's; so does `show`. With `--json` it prints
{"target", "policy", ...}; null means "not set". For `brokerEntryMetadata`, "stampers" follows (an
empty list means "off"), and "delivered" if consumers get additional fields. For other policies,
"value" follows.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ..broker.policies.policy import Place
from ..broker.policies.pulsar_policies import POLICIES as DESCRIPTIONS
from ..client.errors import AdminError, UnreachableError
from ..metadata.stampers import join_stamper_names, split_stamper_names
from ..wire import InvalidTopicNameError
from .brokers import BROKER, admin_client, not_ours, target_path
from .options import JSON, declared
from .output import json_line, output_console, print_rows
from .parsing import CliError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..client.admin import AdminClient

# OSError: a token file cannot be read.
ERRORS = (AdminError, UnreachableError, InvalidTopicNameError, OSError)

STAMPS = "brokerEntryMetadata"
MIRRORS = "mirrorSources"
RETENTION = "retention"
LEADER_EPOCHS = "leaderEpochs"
ENTRY_FORMAT = "entryFormat"
BACKLOG_QUOTA = "backlogQuota"
PROPERTIES = "properties"
DESCRIBED = {each.name: each for each in DESCRIPTIONS}
POLICIES = (*DESCRIBED, ENTRY_FORMAT)
#: The routes of policies with routes of their own, at both levels.
OWN_ROUTES = {
    ENTRY_FORMAT: Place(path=ENTRY_FORMAT),
    BACKLOG_QUOTA: Place(path=BACKLOG_QUOTA),
    PROPERTIES: Place(path=PROPERTIES, method="PUT"),
}
#: The options of `set` for a policy's value. Others have `--value`.
OPTIONS = {
    STAMPS: ("stampers", "off", "deliver"),
    LEADER_EPOCHS: ("enable", "disable"),
    RETENTION: ("time", "size"),
    "messageTTL": ("seconds",),
    "compactionThreshold": ("bytes",),
    MIRRORS: ("clusters",),
    ENTRY_FORMAT: ("setting",),
}
NEEDED = {
    STAMPS: "--stampers or --off",
    LEADER_EPOCHS: "--enable or --disable",
    RETENTION: "--time and --size",
}


UNITS = {"m": 1, "h": 60, "d": 1440, "w": 10_080, "M": 1, "G": 1024, "T": 1024 * 1024}


def _limit(units: str) -> Callable[[str], int]:
    """A parser of a whole number that one of these units may follow."""

    def parse(text: str) -> int:
        unit = text[-1:] if text[-1:] in units else ""
        number = int(text.removesuffix(unit))
        return number if number < 0 else number * UNITS.get(unit, 1)

    parse.__name__ = "number"  # argparse: invalid number value
    return parse


_TARGET = "target NAMESPACE|TOPIC  tenant/namespace, or a topic\n"
_APPLIED = "--applied  what is in force: the topic's own, its namespace's or the broker's\n"
_ONE = f"{_TARGET}policy POLICY  its name\n"
_TYPE = """
--type {destination_storage,message_age}  of a backlogQuota; destination_storage if it is not given
"""
add_arguments = declared(
    f"""
{BROKER}{JSON}
get: print what is set
{_ONE}{_APPLIED}
show: list all policies that are set
{_TARGET}{_APPLIED}
set: set it
{_ONE}{_TYPE}
either:
--stampers NAMES  of brokerEntryMetadata, separated by commas:
    broker-time,index,property-tags:region,app
--off  of brokerEntryMetadata: store entries without stamps
and:
--deliver FIELDS  of brokerEntryMetadata: fields that consumers can get in addition to time and
    index, separated by commas: application_tags,producer_name
either:
--enable  of leaderEpochs: a broker that takes the topic over begins an epoch
--disable  of leaderEpochs: it begins none
and:
--time N[m|h|d|w]  of retention, with --size: minutes; -1 is without limit
--size N[M|G|T]  of retention, with --time: megabytes; -1 is without limit
--seconds N  of messageTTL; 0: messages do not expire
--bytes N  of compactionThreshold; 0: compacted only on request
--clusters NAMES  of mirrorSources, separated by commas; * is every cluster
--setting NAME=VALUE...  of entryFormat: a topic setting by Kafka's name, such as
    message.format.version=0.10.0; without a value, its default. May be given several times
--value JSON  of any other policy, as in Pulsar's REST calls
unset: go back to what the namespace, or the broker, has
{_ONE}{_TYPE}""",
    policy=POLICIES,
    time=_limit("mhdw"),
    size=_limit("MGT"),
    seconds=_limit(""),
    bytes=_limit(""),
)


def run(args: argparse.Namespace) -> int:
    """Get or change the broker's policy."""
    name, path = target_path(args.target)
    admin, of_topic = admin_client(args), "://" in name
    if args.action in ("get", "show") and args.applied and not of_topic:
        raise CliError(f"--applied needs a topic, and {name} is a namespace")
    if args.action == "show":
        _show(args, name, path, admin)
        return 0
    place = _place(args.policy, of_topic=of_topic)
    if args.action == "get":
        _print(args, name, _get(args, f"{path}/{place.path}", admin))
        return 0
    if args.type is not None and args.policy != BACKLOG_QUOTA:
        raise CliError(f"--type is not an option of {args.policy}")
    kind = "" if args.type is None else f"?backlogQuotaType={args.type}"
    path = f"{path}/{place.path}{kind}"
    if args.action == "unset":
        _check_removable(args.policy, place, of_topic=of_topic)
        admin.request("DELETE", path)
    elif place.query:
        admin.request(place.method, f"{path}?{place.query}={_value(args)}")
    else:
        admin.request(place.method, path, _value(args))
    if args.json:  # a change is silent otherwise
        print(json_line({"target": name, "policy": args.policy, "done": args.action}))
    return 0


def _get(args: argparse.Namespace, path: str, admin: AdminClient) -> Any:
    path = f"{path}Map" if path.endswith(BACKLOG_QUOTA) else path
    return admin.request("GET", path, **({"applied": "true"} if args.applied else {}))


def _show(args: argparse.Namespace, name: str, base: str, admin: AdminClient) -> None:
    """List the policies that are set at this level."""
    rows = []
    for policy in POLICIES:
        try:
            place = _place(policy, of_topic="://" in name)
        except CliError:  # it is a policy of the other level
            continue
        found = _get(args, f"{base}/{place.path}", admin)
        if args.applied or not _is_unset(policy, place, found):
            shown = found if args.json else _text(policy, found).replace("\n", "; ")
            rows.append({"target": name, "policy": policy, "value": shown})
    if not (rows or args.json):
        hint = "; --applied shows what is in force" if "://" in name and not args.applied else ""
        print(f"no policy of {name} is set{hint}")
        return
    print_rows(rows, ("policy", "value"), as_json=args.json)


def _is_unset(policy: str, place: Place, found: Any) -> bool:
    """Whether this answer of a broker means that a policy is not set."""
    if policy == PROPERTIES:
        return found in ({}, {"index": "-1"})
    has_value = policy not in OPTIONS and policy != BACKLOG_QUOTA
    return found in (None, place.unset) or (not has_value and found in ({}, []))


def _place(policy: str, *, of_topic: bool) -> Place:
    """The REST paths of a policy. Raises CliError if it does not exist at this level."""
    if policy in OWN_ROUTES:
        return OWN_ROUTES[policy]
    described = DESCRIBED[policy]
    place = described.topic if of_topic else described.namespace
    if place is None:
        raise CliError(f"{policy} is not a policy of {'topics' if of_topic else 'namespaces'}")
    return place


def _check_removable(policy: str, place: Place, *, of_topic: bool) -> None:
    if policy == ENTRY_FORMAT and of_topic:
        raise CliError("the entryFormat of a topic stays once it is set")
    if not place.is_removable:
        raise CliError(f"{policy} cannot be unset here, as in Pulsar; set another value")


def _value(args: argparse.Namespace) -> Any:
    """The policy's value from its options. Raises CliError for those of another policy."""
    policy, mine = args.policy, OPTIONS.get(args.policy, ("value",))
    every = ("value", *(option for options in OPTIONS.values() for option in options))
    values = {option: getattr(args, option) for option in every}
    given = [option for option, value in values.items() if value is not None and value is not False]
    for option in given:
        if option not in mine:
            raise CliError(f"--{option} is not an option of {policy}")
    if not {*given} & {*mine[:2]} or (policy == RETENTION and len(given) < 2):
        raise CliError(f"{policy} needs {NEEDED.get(policy, f'--{mine[0]}')}")
    if policy == STAMPS:
        return _stamps(args)
    if policy == MIRRORS:
        return [name.strip() for name in args.clusters.split(",") if name.strip()]
    if policy == RETENTION:
        return {"retentionTimeInMinutes": args.time, "retentionSizeInMB": args.size}
    if policy == ENTRY_FORMAT:
        pairs = [text.partition("=") for text in args.setting]
        return {name: value or None for name, _, value in pairs}
    if policy in OPTIONS:
        return values[mine[0]]
    try:
        return json.loads(args.value)
    except ValueError as error:
        raise CliError(f"--value {args.value[:80]!r} is not JSON: {error}") from error


def _stamps(args: argparse.Namespace) -> dict[str, list[str]]:
    names = () if args.off else split_stamper_names(args.stampers)
    if not (names or args.off):
        raise CliError("--stampers names no stamper; --off switches stamps off")
    delivered = [name.strip() for name in (args.deliver or "").split(",") if name.strip()]
    return {"stampers": list(names), **({"delivered": delivered} if delivered else {})}


def _print(args: argparse.Namespace, name: str, found: Any) -> None:
    if args.json:
        value = {"value": found}
        if args.policy == STAMPS:  # its fields stand beside the target
            value = {"stampers": None} if found is None else _stamp_fields(found)
        print(json_line({"target": name, "policy": args.policy, **value}))
    elif args.policy not in OPTIONS and isinstance(found, dict) and found and output_console():
        rows = [
            {"field": field, "value": each if isinstance(each, str) else json_line(each)}
            for field, each in found.items()
        ]
        print_rows(rows, ("field", "value"), as_json=False)
    else:
        print(_text(args.policy, found))


def _text(policy: str, found: Any) -> str:
    """A policy's value for people."""
    if found is None:
        return "not set"
    if policy == STAMPS:
        fields = _stamp_fields(found)
        delivered = f"\ndelivered: {','.join(fields['delivered'])}" if "delivered" in fields else ""
        return (join_stamper_names(fields["stampers"]) or "off") + delivered
    if policy == ENTRY_FORMAT and isinstance(found, dict):
        return "\n".join(f"{key}={value}" for key, value in sorted(found.items())) or "defaults"
    if policy == MIRRORS and isinstance(found, list):
        return ",".join(map(str, found)) or "none"
    if policy == RETENTION and isinstance(found, dict):
        time, size = found.get("retentionTimeInMinutes"), found.get("retentionSizeInMB")
        return f"time: {time} minutes, size: {size} MB"
    if policy == LEADER_EPOCHS:
        return "on" if found else "off"
    return json_line(found)


def _stamp_fields(found: Any) -> dict[str, list[str]]:
    stampers = _names(found, "stampers")
    delivered = _names({"delivered": [], **found}, "delivered")
    return {"stampers": stampers, **({"delivered": delivered} if delivered else {})}


def _names(found: Any, field: str) -> list[str]:
    names = found.get(field) if isinstance(found, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise not_ours(found, "such a policy")
    return names
