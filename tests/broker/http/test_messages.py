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
    ("method", "path", "allow"),
    [
        ("POST", "/admin/v2/brokers/health", "GET,OPTIONS"),
        ("PUT", "/admin/v2/brokers/health", "GET,OPTIONS"),
        ("PATCH", "/admin/v2/tenants/public", "DELETE,POST,GET,OPTIONS,PUT"),
        ("GET", "/admin/v2/brokers/configuration/x", "DELETE,OPTIONS"),
    ],
)
def test_a_wrong_method_names_the_right_ones(broker, method, path, allow):
    """405 with Allow, in Pulsar's order."""
    status, headers, body = ask(broker, method, path)
    assert (status, headers["allow"]) == (405, allow)
    assert json.loads(body) == {"reason": "Method Not Allowed"}


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


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"NaN", b"Infinity"])
def test_a_wrong_number_is_refused(broker, number):
    """400, so that no answer shows a number that is not JSON."""
    body = b'{"publishRateInMsgs":' + number + b"}"
    assert ask(broker, "PUT", "/admin/v2/tenants/g", body)[0] == 400
    assert ask(broker, "GET", "/admin/v2/tenants/g")[0] == 404
