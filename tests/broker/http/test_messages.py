"""Requests that no handler takes: pages, Allow, Accept, content types, as Pulsar answers them."""

from __future__ import annotations

import http.client
import json

import pytest


def ask(broker, method, path, body=None, **headers):
    """Status, headers in lower case and body of an answer."""
    link = http.client.HTTPConnection(broker.http_url.removeprefix("http://"), timeout=30)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        link.request(method, path, body, named)
        answer = link.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, answer.read()
    finally:
        link.close()


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/html;charset=iso-8859-1"),
        ("*/*", "text/html;charset=iso-8859-1"),
        ("text/html", "text/html;charset=iso-8859-1"),
        ("text/plain", "text/plain;charset=iso-8859-1"),
        ("application/json", "application/json"),
        ("text/json", "text/json"),
        ("image/png", None),
    ],
)
def test_an_unknown_path_is_answered_in_the_clients_format(broker, accept, content_type):
    """The page names the path, its JSON can be read, and other formats get an empty body."""
    status, headers, body = ask(broker, "GET", "/admin/v2/zzz?a=b", Accept=accept)
    assert (status, headers.get("content-type")) == (404, content_type)
    if content_type is None:
        assert body == b""
    elif "json" in content_type:
        assert json.loads(body) == {"message": "Not Found", "url": "/admin/v2/zzz", "status": "404"}
    else:
        assert b"/admin/v2/zzz" in body


@pytest.mark.parametrize(
    ("method", "path", "allow", "has_page"),
    [
        ("POST", "/admin/v2/brokers/health", "GET,OPTIONS", True),
        ("PUT", "/admin/v2/brokers/health", "GET,OPTIONS", False),
        ("PATCH", "/admin/v2/tenants/public", "DELETE,POST,GET,OPTIONS,PUT", False),
        ("GET", "/admin/v2/brokers/configuration/x", "DELETE,OPTIONS", True),
    ],
)
def test_a_wrong_method_names_the_right_ones(broker, method, path, allow, has_page):
    """405 with Allow, in Pulsar's order."""
    status, headers, body = ask(broker, method, path)
    assert (status, headers["allow"], bool(body)) == (405, allow, has_page)


def test_options_names_the_methods(broker):
    """200, in Allow and as text; 404 for a path without routes."""
    status, headers, body = ask(broker, "OPTIONS", "/admin/v2/clusters")
    assert (status, headers["allow"], body) == (200, "HEAD,GET,OPTIONS", b"HEAD, GET, OPTIONS")
    assert ask(broker, "OPTIONS", "/admin/v2/zzz")[0] == 404


def test_a_client_that_takes_no_json_gets_none(broker):
    """406 on the admin interface; metrics and status have other types."""
    assert ask(broker, "GET", "/admin/v2/clusters", Accept="application/xml")[0] == 406
    assert ask(broker, "GET", "/admin/v2/clusters", Accept="application/*")[0] == 200
    assert ask(broker, "GET", "/metrics", Accept="text/plain")[0] == 200


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 412),
        ("application/json;charset=utf-8", 412),
        ("text/plain", 415),
        ("text/json", 415),
        ("application/x-www-form-urlencoded", 412),
    ],
)
def test_bodies_of_tenants_are_json(broker, content_type, status):
    """415 for a type that is not JSON, though the text is; curl's own type is taken."""
    body = b'{"allowedClusters":["nowhere"]}'
    found = ask(broker, "PUT", "/admin/v2/tenants/t", body, Content_Type=content_type)
    assert found[0] == status


def test_a_number_of_partitions_may_be_plain_text(broker, topic):
    """As pulsar-admin and curl send it."""
    path = f"/admin/v2/{topic.replace('://', '/')}/partitions"
    assert ask(broker, "PUT", path, b"2", Content_Type="text/plain")[0] == 204


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/admin/v2/clusters/", 200),
        ("/admin/v2/clusters//", 404),
        ("/admin/v2//clusters", 404),
        ("//admin/v2/clusters", 404),
        ("/admin/v2/tenants/../clusters", 404),
        ("/admin/v2/tenants/%2e%2e", 404),
        ("/admin/v2/tenants/%zz", 400),
        ("/admin/v2/tenants/public?a=%zz", 200),
    ],
)
def test_slashes_dots_and_percents_in_paths(broker, path, status):
    """One slash at the end makes no difference; nothing else is overlooked."""
    assert ask(broker, "GET", path)[0] == status


def test_a_path_is_never_markup(broker):
    """The page shows the path, escaped."""
    status, _, body = ask(broker, "GET", "/<script>alert(1)</script>")
    assert status == 404
    assert b"<script" not in body


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"NaN", b"Infinity"])
def test_a_wrong_number_is_refused(broker, number):
    """400, so that no answer shows a number that is not JSON."""
    body = b'{"publishRateInMsgs":' + number + b"}"
    assert ask(broker, "PUT", "/admin/v2/tenants/g", body)[0] == 400
    assert ask(broker, "GET", "/admin/v2/tenants/g")[0] == 404
