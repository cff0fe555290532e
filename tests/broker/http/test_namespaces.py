"""Bundles, and what is done to all topics of a namespace or bundle."""

from __future__ import annotations

import pytest

NS = "/admin/v2/namespaces/public"


@pytest.fixture
def namespace(http, topic):
    """A namespace of eight bundles that no other test uses."""
    name = f"n-{topic.rpartition('/')[2]}"
    assert http("PUT", f"{NS}/{name}", {"bundles": {"numBundles": 8}}).status == 204
    return name


@pytest.mark.parametrize(
    ("count", "boundaries"),
    [
        (3, ["0x00000000", "0x55555555", "0xaaaaaaaa", "0xffffffff"]),
        (0, ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]),
        (-1, ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]),
        (1, ["0x00000000", "0xffffffff"]),
    ],
)
def test_a_namespace_has_the_bundles_of_a_real_pulsar(http, topic, count, boundaries):
    """The same boundaries for the same number; four without a good one."""
    path = f"{NS}/b-{topic.rpartition('/')[2]}"
    assert http("PUT", path, {"bundles": {"numBundles": count}}).status == 204
    expected = {"boundaries": boundaries, "numBundles": len(boundaries) - 1}
    assert http("GET", f"{path}/bundles").json == expected
    assert http("GET", path).json["bundles"] == expected


def test_a_number_of_bundles_that_would_fill_the_memory_is_refused(http):
    """412, and there is no such namespace."""
    answer = http("PUT", f"{NS}/huge", {"bundles": {"numBundles": 100_000_000}})
    assert answer.status == 412
    assert http("GET", f"{NS}/huge").status == 404


def test_a_bundle_is_split_in_the_middle(http, namespace):
    """Its range becomes two; a range that is not a bundle is refused by name."""
    path = f"{NS}/{namespace}"
    assert http("PUT", f"{path}/0x00000000_0x20000000/split").status == 204
    found = http("GET", f"{path}/bundles").json
    assert found["boundaries"][:3] == ["0x00000000", "0x10000000", "0x20000000"]
    assert found["numBundles"] == 9
    wrong = http("PUT", f"{path}/0x20000000_0x50000000/split")
    assert (wrong.status, wrong.json["reason"]) == (
        412,
        (
            f"Invalid upper boundary for bundle public/{namespace}/0x20000000_0x50000000. "
            f"Expected upper boundary of public/{namespace}/0x20000000_0x40000000"
        ),
    )
    assert http("PUT", f"{path}/zz/split").json == {"reason": "Invalid bundle range: zz"}


def test_topics_are_in_the_bundles_of_a_real_pulsar(http):
    """Known names: the hash is CRC-32 of the whole name."""
    clusters = {"allowedClusters": ["standalone"]}
    http("PUT", "/admin/v2/tenants/ar-t1", clusters)
    http("PUT", "/admin/v2/namespaces/ar-t1/n2", {"bundles": {"numBundles": 8}})
    lookup = "/lookup/v2/topic/persistent"
    assert http("GET", f"{lookup}/ar-t1/n2/t1/bundle").body == b"0xc0000000_0xe0000000"
    assert http("GET", f"{lookup}/ar-t1/none/t1/bundle").body == b"0x00000000_0xffffffff"
    http("PUT", "/admin/v2/persistent/ar-t1/n2/pm/partitions", 2)
    listed = http("GET", "/admin/v2/persistent/ar-t1/n2?bundle=0x00000000_0x20000000").json
    assert listed == ["persistent://ar-t1/n2/pm-partition-0"]


def test_backlogs_of_a_namespace_are_cleared(http, raw, namespace):
    """For one subscription, or all; a subscription can be deleted everywhere."""
    topics = [f"persistent://public/{namespace}/t{n}" for n in range(3)]
    for name in topics:
        raw.subscribe(name, "a").close()
        raw.subscribe(name, "b").close()
        raw.create_producer(name).send(b"x")

    def backlogs(subscription):
        paths = (f"/admin/v2/{name.replace('://', '/')}/stats" for name in topics)
        rows = (http("GET", path).json["subscriptions"] for path in paths)
        return [row[subscription]["msgBacklog"] if subscription in row else None for row in rows]

    path = f"{NS}/{namespace}"
    assert http("POST", f"{path}/clearBacklog/a").status == 204
    assert (backlogs("a"), backlogs("b")) == ([0, 0, 0], [1, 1, 1])
    assert http("POST", f"{path}/clearBacklog").status == 204
    assert backlogs("b") == [0, 0, 0]
    assert http("POST", f"{path}/unsubscribe/a").status == 204
    assert backlogs("a") == [None, None, None]
    assert http("POST", f"{path}/unsubscribe/pulsar.repl.x").status == 412


def test_a_namespace_with_topics_is_not_deleted_by_force(http, raw, namespace):
    """As Pulsar by default: 405, and the topics stay."""
    name = f"persistent://public/{namespace}/kept"
    raw.create_producer(name).close()
    assert http("DELETE", f"{NS}/{namespace}?force=true").status == 405
    assert http("DELETE", f"{NS}/{namespace}").status == 409
    assert http("GET", f"{NS}/{namespace}/topics").json == [name]


STEPS = [
    ("GET", "/properties", None, 200, b"{}"),
    ("PUT", "/property/k/v", None, 204, b""),
    ("GET", "/property/k", None, 200, b"v"),
    ("PUT", "/properties", {"a": 1, "b": True}, 204, b""),
    ("GET", "/properties", None, 200, b'{"k":"v","a":"1","b":"true"}'),
    ("DELETE", "/property/a", None, 200, b"1"),
    ("GET", "/property/a", None, 200, b""),
    ("DELETE", "/properties", None, 204, b""),
    ("GET", "/replication", None, 200, b'["standalone"]'),
    ("POST", "/replication", ["nowhere"], 403, b'{"reason":"Invalid cluster id: nowhere"}'),
    ("POST", "/replication", ["standalone"], 200, b""),
]


def test_what_only_describes_a_namespace_is_kept(http, namespace):
    """Statuses and bodies, in this order, as a Pulsar 4.0.8 answered them."""
    for method, path, body, status, expected in STEPS:
        answer = http(method, f"{NS}/{namespace}{path}", body)
        assert answer.status == status, (method, path, answer)
        assert answer.body == expected, (method, path, answer)
