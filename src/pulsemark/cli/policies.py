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

from ..client.errors import AdminError, UnreachableError
from ..metadata.stampers import join_stamper_names, split_stamper_names
from ..wire import InvalidTopicNameError
from .brokers import add_broker, admin_client, not_ours, target_path
from .options import add_json
from .output import json_line, output_console, print_rows
from .parsing import CliError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..broker.policies.policy import Place
    from ..client.admin import AdminClient

# OSError: a token file cannot be read.
ERRORS = (AdminError, UnreachableError, InvalidTopicNameError, OSError)

STAMPS = "brokerEntryMetadata"
MIRRORS = "mirrorSources"
RETENTION = "retention"
LEADER_EPOCHS = "leaderEpochs"
#: Policies with a number as value, and the option of `set` for it.
NUMBERS = {"messageTTL": "seconds", "compactionThreshold": "bytes"}
ENTRY_FORMAT = "entryFormat"
BACKLOG_QUOTA = "backlogQuota"
#: Policies whose value is given as JSON. Their names are not taken from the broker's code, which
#: most calls of the command line need not load.
OF_JSON = (
    BACKLOG_QUOTA, "maxProducersPerTopic", "maxConsumersPerTopic", "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic", "maxTopicsPerNamespace", "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesPerSubscription", "maxMessageSize", "publishRate", "dispatchRate",
    "subscriptionDispatchRate", "subscribeRate", "autoTopicCreation",
    "autoSubscriptionCreation", "inactiveTopicPolicies", "subscriptionExpirationTime",
    "subscriptionTypesEnabled", "deduplication", "deduplicationSnapshotInterval",
    "delayedDelivery", "encryptionRequired", "schemaCompatibilityStrategy",
    "schemaAutoUpdateCompatibilityStrategy", "isAllowAutoUpdateSchema",
    "schemaValidationEnforced", "subscriptionAuthMode", "replication", "properties",
)  # fmt: skip
POLICIES = (STAMPS, LEADER_EPOCHS, RETENTION, *NUMBERS, MIRRORS, ENTRY_FORMAT, *OF_JSON)
OPTIONS = (
    "stampers", "off", "deliver", "time", "size", "seconds", "bytes", "clusters", "setting",
    "value",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    get = _action(actions, "get", "print what is set")
    show = _action(actions, "show", "list all policies that are set", of_one=False)
    for action in (get, show):
        action.add_argument(
            "--applied",
            action="store_true",
            help="what is in force: the topic's own, its namespace's or the broker's",
        )
        add_json(action)
    setting = _action(actions, "set", "set it")
    unset = _action(actions, "unset", "go back to what the namespace, or the broker, has")
    _add_json(setting, unset)
    for action in (setting, unset):
        add_json(action)
    _add_own(setting)


def _add_own(setting: argparse.ArgumentParser) -> None:
    value = setting.add_argument_group("brokerEntryMetadata").add_mutually_exclusive_group()
    value.add_argument(
        "--stampers",
        metavar="NAMES",
        help="separated by commas: broker-time,index,property-tags:region,app",
    )
    value.add_argument("--off", action="store_true", help="store entries without stamps")
    setting.add_argument(
        "--deliver",
        metavar="FIELDS",
        default="",
        help="fields that consumers can get in addition to time and index, separated by commas: "
        "application_tags,producer_name",
    )
    _add_limits(setting)
    setting.add_argument_group("mirrorSources").add_argument(
        "--clusters", metavar="NAMES", help="separated by commas; * is every cluster"
    )
    setting.add_argument_group("entryFormat").add_argument(
        "--setting",
        action="append",
        metavar="NAME=VALUE",
        help="a topic setting by Kafka's name, such as message.format.version=0.10.0; without "
        "a value, its default. May be given several times",
    )


def _add_json(setting: argparse.ArgumentParser, unset: argparse.ArgumentParser) -> None:
    other = setting.add_argument_group("any other policy")
    other.add_argument("--value", metavar="JSON", help="its value, as in Pulsar's REST calls")
    for action in (setting, unset):
        action.add_argument(
            "--type",
            choices=("destination_storage", "message_age"),
            help="of a backlogQuota; destination_storage if it is not given",
        )


def _add_limits(setting: argparse.ArgumentParser) -> None:
    switch = setting.add_argument_group("leaderEpochs").add_mutually_exclusive_group()
    for option, value, what in (
        ("--enable", True, "a broker that takes the topic over begins an epoch"),
        ("--disable", False, "it begins none"),
    ):
        switch.add_argument(
            option, dest="enable", action="store_const", const=value, default=None, help=what
        )
    retention = setting.add_argument_group("retention: both limits; -1 is without limit")
    retention.add_argument("--time", type=_limit("mhdw"), metavar="N[m|h|d|w]", help="minutes")
    retention.add_argument("--size", type=_limit("MGT"), metavar="N[M|G|T]", help="megabytes")
    setting.add_argument_group("messageTTL").add_argument(
        "--seconds", type=_limit(""), metavar="N", help="0: messages do not expire"
    )
    setting.add_argument_group("compactionThreshold").add_argument(
        "--bytes", type=_limit(""), metavar="N", help="0: compacted only on request"
    )


UNITS = {"m": 1, "h": 60, "d": 1440, "w": 10_080, "M": 1, "G": 1024, "T": 1024 * 1024}


def _limit(units: str) -> Callable[[str], int]:
    """A parser of a whole number that one of these units may follow."""

    def parse(text: str) -> int:
        unit = text[-1:] if text[-1:] in units else ""
        number = int(text.removesuffix(unit))
        return number if number < 0 else number * UNITS.get(unit, 1)

    parse.__name__ = "number"  # argparse: invalid number value
    return parse


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    what: str,
    *,
    of_one: bool = True,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=what, description=f"{what.capitalize()}.")
    parser.add_argument("target", metavar="NAMESPACE|TOPIC", help="tenant/namespace, or a topic")
    if of_one:
        parser.add_argument("policy", metavar="POLICY", choices=POLICIES, help="its name")
    add_broker(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Get or change the broker's policy."""
    name, path = target_path(args.target)
    admin = admin_client(args)
    if args.action in ("get", "show") and args.applied and "://" not in name:
        raise CliError(f"--applied needs a topic, and {name} is a namespace")
    if args.action == "show":
        _show(args, name, path, admin)
        return 0
    path = f"{path}/{_place(args, args.policy, of_topic='://' in name)}"
    if args.action == "get":
        _print(args, name, _get(args, path, admin))
        return 0
    if args.action == "set":
        _set(args, path, admin, of_topic="://" in name)
    else:
        admin.request("DELETE", path)
    if args.json:  # a change is silent otherwise
        print(json_line({"target": name, "policy": args.policy, "done": args.action}))
    return 0


def _get(args: argparse.Namespace, path: str, admin: AdminClient) -> Any:
    return admin.request("GET", path, **({"applied": "true"} if args.applied else {}))


def _show(args: argparse.Namespace, name: str, base: str, admin: AdminClient) -> None:
    """List what is set of all policies of this level."""
    rows = []
    for policy in POLICIES:
        try:
            place = _place(args, policy, of_topic="://" in name)
        except CliError:  # it is a policy of the other level
            continue
        found = _get(args, f"{base}/{place}", admin)
        if args.applied or found not in _unset(policy, of_topic="://" in name):
            shown = found if args.json else _text(policy, found).replace("\n", "; ")
            rows.append({"target": name, "policy": policy, "value": shown})
    if not (rows or args.json):
        hint = "; --applied shows what is in force" if "://" in name and not args.applied else ""
        print(f"no policy of {name} is set{hint}")
        return
    print_rows(rows, ("policy", "value"), as_json=args.json)


def _unset(policy: str, *, of_topic: bool) -> tuple[Any, ...]:
    """What a broker shows of a policy that is not set."""
    if policy == "properties":
        return {}, {"index": "-1"}
    if policy not in OF_JSON or policy == BACKLOG_QUOTA:
        return None, {}, []
    return None, _described(policy, of_topic=of_topic).unset


def _place(args: argparse.Namespace, policy: str, *, of_topic: bool) -> str:
    """The last part of the path. Raises CliError if the policy is not one of this level."""
    reads = args.action in ("get", "show")
    if policy == ENTRY_FORMAT and of_topic and args.action == "unset":
        raise CliError("the entryFormat of a topic stays once it is set")
    if not reads and args.type is not None and policy != BACKLOG_QUOTA:
        raise CliError(f"--type is not an option of {policy}")
    if policy == BACKLOG_QUOTA:
        kind = "" if reads or args.type is None else f"?backlogQuotaType={args.type}"
        return "backlogQuotaMap" if reads else f"backlogQuota{kind}"
    if policy not in OF_JSON or policy == "properties":
        return policy
    place = _described(policy, of_topic=of_topic)
    if args.action == "unset" and not place.is_removable:
        raise CliError(f"{policy} cannot be unset here, as in Pulsar; set another value")
    return place.path


def _described(policy: str, *, of_topic: bool) -> Place:
    from ..broker.policies.pulsar_policies import POLICIES as DESCRIPTIONS

    described = next(each for each in DESCRIPTIONS if each.name == policy)
    place = described.topic if of_topic else described.namespace
    if place is None:
        raise CliError(f"{policy} is not a policy of {'topics' if of_topic else 'namespaces'}")
    return place


def _set(args: argparse.Namespace, path: str, admin: AdminClient, *, of_topic: bool) -> None:
    value, method = _value(args), "POST"
    if args.policy == "messageTTL" and of_topic:
        path, value = f"{path}?messageTTL={value}", None
    elif (args.policy == "compactionThreshold" and not of_topic) or args.policy == "properties":
        method = "PUT"
    elif args.policy in OF_JSON and args.policy != BACKLOG_QUOTA:
        method = _described(args.policy, of_topic=of_topic).method
    admin.request(method, path, value)


def _value(args: argparse.Namespace) -> Any:
    """The policy's value from its options. Raises CliError for those of another policy."""
    belonging = {
        STAMPS: ("stampers", "off", "deliver"),
        LEADER_EPOCHS: ("enable",),
        RETENTION: ("time", "size"),
        MIRRORS: ("clusters",),
        **{policy: (option,) for policy, option in NUMBERS.items()},
        ENTRY_FORMAT: ("setting",),
        **dict.fromkeys(OF_JSON, ("value",)),
    }[args.policy]
    for option in OPTIONS:
        if option not in belonging and getattr(args, option) not in (None, False, ""):
            raise CliError(f"--{option} is not an option of {args.policy}")
    if args.policy != LEADER_EPOCHS and args.enable is not None:
        option = "enable" if args.enable else "disable"
        raise CliError(f"--{option} is not an option of {args.policy}")
    if args.policy == STAMPS:
        return _stamps(args)
    if args.policy == MIRRORS and args.clusters is not None:
        return [name.strip() for name in args.clusters.split(",") if name.strip()]
    given = [getattr(args, option) for option in belonging]
    if None in given:
        needed = " and ".join(f"--{option}" for option in belonging)
        needed = "--enable or --disable" if args.policy == LEADER_EPOCHS else needed
        raise CliError(f"{args.policy} needs {needed}")
    if args.policy == ENTRY_FORMAT:
        pairs = [text.partition("=") for text in args.setting]
        return {name: value or None for name, _, value in pairs}
    if args.policy in OF_JSON:
        try:
            return json.loads(args.value)
        except ValueError as error:
            raise CliError(f"--value {args.value[:80]!r} is not JSON: {error}") from error
    if args.policy == RETENTION:
        return {"retentionTimeInMinutes": args.time, "retentionSizeInMB": args.size}
    return given[0]


def _stamps(args: argparse.Namespace) -> dict[str, list[str]]:
    if args.stampers is None and not args.off:
        raise CliError(f"{STAMPS} needs --stampers or --off")
    names = () if args.off else split_stamper_names(args.stampers)
    if not (names or args.off):
        raise CliError("--stampers names no stamper; --off switches stamps off")
    delivered = [name.strip() for name in args.deliver.split(",") if name.strip()]
    return {"stampers": list(names), **({"delivered": delivered} if delivered else {})}


def _print(args: argparse.Namespace, name: str, found: Any) -> None:
    if args.json:
        value = {"value": found}
        if args.policy == STAMPS:  # its fields stand beside the target
            value = {"stampers": None} if found is None else _stamp_fields(found)
        print(json_line({"target": name, "policy": args.policy, **value}))
    elif args.policy in OF_JSON and isinstance(found, dict) and found and output_console():
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
    return json_line(found) if policy in OF_JSON else str(found)


def _stamp_fields(found: Any) -> dict[str, list[str]]:
    stampers = _names(found, "stampers")
    delivered = _names({"delivered": [], **found}, "delivered")
    return {"stampers": stampers, **({"delivered": delivered} if delivered else {})}


def _names(found: Any, field: str) -> list[str]:
    names = found.get(field) if isinstance(found, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise not_ours(found, "such a policy")
    return names
