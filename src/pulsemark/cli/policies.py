"""`pulsemark policies get|set|unset NAMESPACE|TOPIC POLICY`: a running broker's policies.

The command calls the broker's HTTP port (`--admin-url`). A target `tenant/namespace` is a
namespace; any other target is a topic, in short or full form. POLICY is `brokerEntryMetadata`: the
stamps of the entries, see docs/stamps.md.

`get` prints the policy of the target itself. With `--applied` it prints the policy that is in force
for the topic: its own, its namespace's or the broker's. With `--json` it prints {"target",
"policy", "stampers"}; null means "not set" and an empty list means "off". If consumers get
additional fields, "delivered" lists them.
"""

from __future__ import annotations

import argparse
import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from ..metadata.stamper_names import join_stamper_names, split_stamper_names
from ..wire import InvalidTopicNameError, TopicName, check_namespace
from .errors import CliError
from .options import add_json, json_line

# All errors here come from calls to the broker, which raise CliError.
ERRORS = (InvalidTopicNameError,)

DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"
POLICIES = ("brokerEntryMetadata",)
TIMEOUT_S = 30


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
    setting = _action(actions, "set", "set it, for every entry from now on")
    value = setting.add_mutually_exclusive_group(required=True)
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
    _action(actions, "unset", "go back to what the namespace, or the broker, has")


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=what, description=f"{what.capitalize()}.")
    parser.add_argument("target", metavar="NAMESPACE|TOPIC", help="tenant/namespace, or a topic")
    parser.add_argument("policy", metavar="POLICY", choices=POLICIES, help=", ".join(POLICIES))
    parser.add_argument(
        "--admin-url",
        default=DEFAULT_ADMIN_URL,
        metavar="URL",
        help=f"the broker's HTTP address (default: {DEFAULT_ADMIN_URL})",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Get or change the broker's policy."""
    name, path = _target(args.target)
    url = f"{_admin_url(args.admin_url)}{path}/{args.policy}"
    if args.action == "get":
        if args.applied and "://" not in name:
            raise CliError("--applied needs a topic, not a namespace")
        found = _ask("GET", f"{url}?applied=true" if args.applied else url)
        _print(args, name, found)
    elif args.action == "set":
        names = () if args.off else split_stamper_names(args.stampers)
        if not (names or args.off):
            raise CliError("--stampers is empty: name stampers, or use --off for no stamps")
        delivered = [name.strip() for name in args.deliver.split(",") if name.strip()]
        more = {"delivered": delivered} if delivered else {}
        _ask("POST", url, {"stampers": list(names), **more})
    else:
        _ask("DELETE", url)
    return 0


def _print(args: argparse.Namespace, name: str, found: Any) -> None:
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


def _target(text: str) -> tuple[str, str]:
    """The target's full name, and its path in the admin interface."""
    if "://" not in text and text.count("/") == 1:
        tenant, namespace = check_namespace(text)
        return text, f"/admin/v2/namespaces/{_quoted(tenant, namespace)}"
    topic = TopicName.parse(text)
    parts = (topic.domain, topic.tenant, topic.namespace_local, topic.local)
    return str(topic), f"/admin/v2/{_quoted(*parts)}"


def _quoted(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def _admin_url(text: str) -> str:
    try:
        url = urlsplit(text)
        fits = url.scheme in ("http", "https") and url.hostname and not (url.query or url.fragment)
        _ = url.port
    except ValueError as error:
        raise CliError(f"--admin-url {text!r}: {error}") from error
    if not fits:
        raise CliError(f"--admin-url {text!r} is not of the form {DEFAULT_ADMIN_URL}")
    return text.rstrip("/")


def _ask(method: str, url: str, value: object = None) -> Any:
    """The JSON answer; None for an empty answer. Raises CliError with the broker's error text."""
    body = None if value is None else json.dumps(value).encode()
    request = Request(url, body, {"Content-Type": "application/json"}, method=method)  # noqa: S310 - checked
    # The environment's proxy is for other hosts; the broker is called directly.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else None
    except HTTPError as error:
        with error:
            raise CliError(f"{url}: {error.code} {_reason(error.read())}") from error
    except URLError as error:
        raise CliError(f"no broker answers at {url}: {error.reason}") from error
    except (HTTPException, OSError, ValueError) as error:
        raise CliError(f"{url} does not answer like a broker: {error}") from error


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace")
