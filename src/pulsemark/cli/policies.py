"""`pulsemark policies get|set|unset NAMESPACE|TOPIC POLICY`: a running broker's policies.

The command calls the broker's HTTP port (`--admin-url`). A target `tenant/namespace` is a
namespace; any other target is a topic, in short or full form. POLICY is one of

- `brokerEntryMetadata`: the stamps of the entries, see docs/stamps.md;
- `leaderEpochs`: whether a leader epoch begins when a broker takes the topic over, see
  docs/control-entries.md;
- `retention`, `messageTTL`, `compactionThreshold`: when messages are removed, expired and
  compacted, see docs/cleaning.md;
- `mirrorSources`: the clusters from which mirrors may publish, see docs/mirror.md;
- `entryFormat`, of topics only: in which format Kafka's record sets are stored, see docs/kafka.md;
- any other policy of docs/policies.md. Its value is JSON (`--value`), as in Pulsar's REST calls. A
  backlog quota has a type (`--type`); `get` shows the quotas of all types.

`get` prints the policy of the target itself. With `--applied` it prints the policy that is in force
for the topic: its own, its namespace's or the broker's. With `--json` it prints {"target",
"policy", ...}; null means "not set". For `brokerEntryMetadata`, "stampers" follows (an empty list
means "off"), and "delivered" if consumers get additional fields. For other policies, "value"
follows.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ..metadata.stampers import join_stamper_names, split_stamper_names
from ..wire import InvalidTopicNameError
from .brokers import Access, access_of, add_broker, admin_url, ask, target_path
from .errors import CliError
from .options import add_json, json_line
from .tables import output_console, print_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..broker.policies.policy import Place

# All errors here come from calls to the broker, which raise CliError.
# OSError: a token file cannot be read.
ERRORS = (InvalidTopicNameError, OSError)

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
    get.add_argument(
        "--applied",
        action="store_true",
        help="the policy in force: the topic's own, its namespace's or the broker's",
    )
    add_json(get)
    setting = _action(actions, "set", "set it")
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
    unset = _action(actions, "unset", "go back to what the namespace, or the broker, has")
    _add_json(setting, unset)
    for action in (setting, unset):
        add_json(action)


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
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=what, description=f"{what.capitalize()}.")
    parser.add_argument("target", metavar="NAMESPACE|TOPIC", help="tenant/namespace, or a topic")
    parser.add_argument("policy", metavar="POLICY", choices=POLICIES, help="its name")
    add_broker(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Get or change the broker's policy."""
    name, path = target_path(args.target)
    access = access_of(args)
    if args.policy == ENTRY_FORMAT and ("://" not in name or args.action == "unset"):
        raise CliError("entryFormat is a policy of topics, and stays once it is set")
    place = _place(args, of_topic="://" in name)
    url = f"{admin_url(args.admin_url)}{path}/{place}"
    if args.action == "get":
        if args.applied and "://" not in name:
            raise CliError("--applied needs a topic, not a namespace")
        found = ask(
            "GET",
            f"{url}?applied=true" if args.applied else url,
            access=access,
            timeout_s=args.request_timeout,
        )
        _print(args, name, found)
        return 0
    if args.action == "set":
        _set(args, url, access, of_topic="://" in name)
    else:
        ask("DELETE", url, access=access, timeout_s=args.request_timeout)
    if args.json:  # a change is silent otherwise
        print(json_line({"target": name, "policy": args.policy, "done": args.action}))
    return 0


def _place(args: argparse.Namespace, *, of_topic: bool) -> str:
    """The last part of the path. Raises CliError if the policy is not one of this level."""
    if args.action != "get" and args.type is not None and args.policy != BACKLOG_QUOTA:
        raise CliError(f"--type is not an option of {args.policy}")
    if args.policy == BACKLOG_QUOTA:
        kind = "" if args.action == "get" or args.type is None else f"?backlogQuotaType={args.type}"
        return "backlogQuotaMap" if args.action == "get" else f"backlogQuota{kind}"
    if args.policy not in OF_JSON or args.policy == "properties":
        return str(args.policy)
    place = _described(args.policy, of_topic=of_topic)
    if args.action == "unset" and not place.is_removable:
        raise CliError(f"{args.policy} cannot be unset here, as in Pulsar; set another value")
    return place.path


def _described(policy: str, *, of_topic: bool) -> Place:
    from ..broker.policies.catalogue import POLICIES as DESCRIPTIONS

    described = next(each for each in DESCRIPTIONS if each.name == policy)
    place = described.topic if of_topic else described.namespace
    if place is None:
        raise CliError(f"{policy} is not a policy of {'topics' if of_topic else 'namespaces'}")
    return place


def _set(args: argparse.Namespace, url: str, access: Access, *, of_topic: bool) -> None:
    value = _value(args)
    if args.policy == "messageTTL" and of_topic:
        ask("POST", f"{url}?messageTTL={value}", access=access, timeout_s=args.request_timeout)
    elif (args.policy == "compactionThreshold" and not of_topic) or args.policy == "properties":
        ask("PUT", url, value, access, args.request_timeout)
    elif args.policy in OF_JSON and args.policy != BACKLOG_QUOTA:
        ask(
            _described(args.policy, of_topic=of_topic).method,
            url,
            value,
            access,
            args.request_timeout,
        )
    else:
        ask("POST", url, value, access, args.request_timeout)


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
        return _json(args)
    if args.policy == RETENTION:
        return {"retentionTimeInMinutes": args.time, "retentionSizeInMB": args.size}
    return given[0]


def _json(args: argparse.Namespace) -> Any:
    try:
        return json.loads(args.value)
    except ValueError as error:
        raise CliError(f"--value {args.value[:80]!r} is not JSON: {error}") from error


def _stamps(args: argparse.Namespace) -> dict[str, list[str]]:
    if args.stampers is None and not args.off:
        raise CliError(f"{STAMPS} needs --stampers or --off")
    names = () if args.off else split_stamper_names(args.stampers)
    if not (names or args.off):
        raise CliError("--stampers names no stamper; --off switches stamps off")
    delivered = [name.strip() for name in args.deliver.split(",") if name.strip()]
    return {"stampers": list(names), **({"delivered": delivered} if delivered else {})}


def _print(args: argparse.Namespace, name: str, found: Any) -> None:
    if args.policy == STAMPS:
        _print_stamps(args, name, found)
        return
    if args.json:
        print(json_line({"target": name, "policy": args.policy, "value": found}))
    elif found is None:
        print("not set")
    elif args.policy == ENTRY_FORMAT and isinstance(found, dict):
        print("\n".join(f"{key}={value}" for key, value in sorted(found.items())) or "defaults")
    elif args.policy == MIRRORS and isinstance(found, list):
        print(",".join(map(str, found)) or "none")
    elif args.policy == RETENTION and isinstance(found, dict):
        time, size = found.get("retentionTimeInMinutes"), found.get("retentionSizeInMB")
        print(f"time: {time} minutes, size: {size} MB")
    elif args.policy == LEADER_EPOCHS:
        print("on" if found else "off")
    elif args.policy in OF_JSON:
        _print_value(found)
    else:
        print(found)


def _print_value(found: Any) -> None:
    """A value of JSON: on a terminal its fields as a table, otherwise in one line."""
    if not (isinstance(found, dict) and found) or output_console() is None:
        print(json_line(found))
        return
    rows = [
        {"field": name, "value": value if isinstance(value, str) else json_line(value)}
        for name, value in found.items()
    ]
    print_rows(rows, ("field", "value"), as_json=False)


def _print_stamps(args: argparse.Namespace, name: str, found: Any) -> None:
    stampers = None if found is None else _names(found, "stampers")
    delivered = [] if found is None else _names({"delivered": [], **found}, "delivered")
    if args.json:
        more = {"delivered": delivered} if delivered else {}
        print(json_line({"target": name, "policy": args.policy, "stampers": stampers, **more}))
    elif stampers is None:
        print("not set")
    else:
        print(join_stamper_names(stampers) or "off")
        if delivered:
            print(f"delivered: {','.join(delivered)}")


def _names(found: Any, field: str) -> list[str]:
    names = found.get(field) if isinstance(found, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CliError(
            f"the answer {str(found)[:80]!r} is not such a policy; is this a pulsemark broker?"
        )
    return names
