"""What is answered of absent namespaces, of requests without a body, and of absent services."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsemark.broker import BrokerConfig, BrokerThread

Ask = Callable[..., tuple[int, str]]
NS = "/admin/v2/namespaces"
BUNDLE = "0x00000000_0x40000000"


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """What asks a broker: method, path and body in, status and reason (or body) out."""
    folder: Path = tmp_path_factory.mktemp("absent") / "data"
    with BrokerThread(BrokerConfig(data_dir=folder, port=0, http_port=0)) as broker:

        def call(
            method: str, path: str, body: bytes | None = None, kind: str = "application/json"
        ) -> tuple[int, str]:
            request = urllib.request.Request(broker.http_url + path, body, method=method)
            if body is not None:
                request.add_header("Content-Type", kind)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    text = error.read().decode()
                is_json = error.headers.get("Content-Type") == "application/json"
                return error.code, json.loads(text)["reason"] if is_json else text

        yield call


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "public/absent/replication"),
        ("DELETE", "public/absent/backlogQuota"),
        ("GET", "absent/absent/properties"),
        ("PUT", "absent/absent/property/a/b"),
        ("DELETE", "public/absent/property/a"),
        ("PUT", f"public/absent/{BUNDLE}/unload"),
        ("PUT", f"public/absent/{BUNDLE}/split"),
        ("POST", "public/absent/permissions/r"),
        ("DELETE", "public/absent/permissions/r"),
    ],
)
def test_an_absent_namespace(ask: Ask, method: str, path: str) -> None:
    """404 with one text, whatever else is wrong."""
    assert ask(method, f"{NS}/{path}") == (404, "Namespace does not exist")


def test_a_lookup_with_a_listener_that_is_not_configured(ask: Ask) -> None:
    """The client gets the text that LOOKUP has for it, and no address of another listener."""
    path = "/lookup/v2/topic/persistent/public/default/x"
    assert ask("GET", f"{path}?listenerName=inner") == (
        404,
        "the broker do not have inner listener",
    )
    assert ask("GET", path)[0] == 200
