"""Names of topics: which are, which are not, and what they are made of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.wire import (
    InvalidTopicNameError,
    TopicName,
    check_namespace,
    is_older_namespace,
)

GOOD = [
    ("x", "persistent://public/default/x"),
    ("tenant/ns/x", "persistent://tenant/ns/x"),
    ("persistent://public/default/x", "persistent://public/default/x"),
    ("non-persistent://t/n/x", "non-persistent://t/n/x"),
    ("persistent://a-b=c:d.e_f/1/x", "persistent://a-b=c:d.e_f/1/x"),
    ("my topic", "persistent://public/default/my topic"),
    ("a%2Fb", "persistent://public/default/a%2Fb"),
    ("...", "persistent://public/default/..."),
    ("日本語", "persistent://public/default/日本語"),
    ("\N{FAMILY}", "persistent://public/default/\N{FAMILY}"),
    ("x" * 255, f"persistent://public/default/{'x' * 255}"),
    ("persistent://t/cluster/n/x", "persistent://t/cluster/n/x"),
    ("persistent://t/cluster/n/a/b", "persistent://t/cluster/n/a/b"),
    ("é" * 127, f"persistent://public/default/{'é' * 127}"),
]

BAD = [
    ("", "empty"),
    (" ", "empty"),
    (".", "may not be '.'"),
    ("..", "may not be '..'"),
    ("persistent://..", "not of the form"),
    ("persistent://public/default/..", "may not be '..'"),
    ("persistent://../default/x", "tenant may not be"),
    ("persistent://public/../x", "namespace may not be"),
    ("a/b", "not of the form"),
    ("a/b/c/d", "not of the form"),
    ("/", "not of the form"),
    ("//x", "tenant is empty"),
    ("persistent://", "not of the form"),
    ("persistent:///default/x", "tenant is empty"),
    ("persistent://public//x", "namespace is empty"),
    ("persistent://public/default/", "topic is empty"),
    ("persistent://public/default", "not of the form"),
    ("persistent://public//default/x", "cluster is empty"),
    ("persistent://public/cl uster/default/x", "cluster may hold"),
    ("persistent://public/cluster/default/", "topic is empty"),
    ("persistent://public/cluster/default/a/../b", "may not be '..'"),
    ("persistent//public/default/x", "not of the form"),
    ("kafka://public/default/x", "unknown domain 'kafka'"),
    ("://public/default/x", "unknown domain ''"),
    ("PERSISTENT://public/default/x", "unknown domain"),
    ("nul\0", "control character"),
    ("line\nbreak", "control character"),
    ("\x7f", "control character"),
    ("\x85", "empty"),
    ("persistent://pub lic/default/x", "tenant may hold"),
    ("persistent://públic/default/x", "tenant may hold"),
    ("persistent://public/de%2Ffault/x", "namespace may hold"),
    ("x" * 256, "256 bytes"),
    ("x" * 300, "300 bytes"),
    ("é" * 128, "256 bytes"),
    (f"persistent://{'t' * 300}/default/x", "tenant has 300 bytes"),
    ("\ud800", "UTF-8"),
]


@pytest.mark.parametrize(("name", "full"), GOOD)
def test_good_names_have_one_full_form(name: str, full: str) -> None:
    """A name in any form means the topic of its full form, which means itself."""
    topic = TopicName.parse(name)

    assert str(topic) == full
    assert TopicName.parse(full) == topic


@pytest.mark.parametrize(("name", "reason"), BAD)
def test_bad_names_are_refused_with_the_reason(name: str, reason: str) -> None:
    """An invalid name raises an error with the name and what is wrong."""
    with pytest.raises(InvalidTopicNameError, match=reason) as caught:
        TopicName.parse(name)

    assert caught.value.name == name


def test_parts_are_attributes() -> None:
    """Domain, tenant, namespace and local part can be read one by one."""
    topic = TopicName.parse("non-persistent://t/n/x")

    assert (topic.domain, topic.tenant, topic.namespace_local) == ("non-persistent", "t", "n")
    assert (topic.namespace, topic.local, topic.is_persistent) == ("t/n", "x", False)
    assert TopicName.parse("x").is_persistent


@pytest.mark.parametrize(
    ("local", "index", "base"),
    [
        ("x", -1, "x"),
        ("x-partition-0", 0, "x"),
        ("x-partition-17", 17, "x"),
        ("x-partition-2147483647", 2147483647, "x"),
        ("x-partition-2147483648", -1, "x-partition-2147483648"),
        ("x-partition-99999999999999999999", -1, "x-partition-99999999999999999999"),
        ("x-partition-01", -1, "x-partition-01"),
        ("x-partition--1", -1, "x-partition--1"),
        ("x-partition-", -1, "x-partition-"),
        ("x-partition-\u0661", -1, "x-partition-\u0661"),
        ("x-partition-1-partition-2", 2, "x-partition-1"),
        ("-partition-1", -1, "-partition-1"),
    ],
)
def test_partition_names(local: str, index: int, base: str) -> None:
    """A partition's number is read only where a broker could have written it."""
    topic = TopicName.parse(local)

    assert topic.partition_index == index
    assert topic.partitioned == TopicName.parse(base)


def test_partition_makes_the_name_that_it_reads() -> None:
    """partition() and partition_index are each other's inverse."""
    topic = TopicName.parse("non-persistent://t/n/x")

    part = topic.partition(12)

    assert str(part) == "non-persistent://t/n/x-partition-12"
    assert part.partition_index == 12
    assert part.partitioned == topic


def test_a_partition_has_no_partitions() -> None:
    """A partition has no partitions, and no number is negative."""
    with pytest.raises(ValueError, match="no partition 0"):
        TopicName.parse("x-partition-1").partition(0)
    with pytest.raises(ValueError, match="no partition -1"):
        TopicName.parse("x").partition(-1)


@pytest.mark.parametrize("name", ["t/n", "public/default", "a.b/c=d"])
def test_good_namespaces(name: str) -> None:
    """A namespace is a tenant and a name."""
    assert "/".join(check_namespace(name)) == name


@pytest.mark.parametrize("name", ["", "t", "t/", "/n", "t/n/x", "../n", "t/..", "t/n\0", "t/n x"])
def test_bad_namespaces(name: str) -> None:
    """What is no namespace is refused as a topic's name would be."""
    with pytest.raises(InvalidTopicNameError) as caught:
        check_namespace(name)

    assert caught.value.name == name


def test_a_long_name_is_shortened_in_the_message_only() -> None:
    """An error's text stays readable; its attribute keeps the whole name."""
    with pytest.raises(InvalidTopicNameError) as caught:
        TopicName.parse("x" * 100_000)

    assert len(str(caught.value)) < 200
    assert len(caught.value.name) == 100_000


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_topic_or_refused(name: str) -> None:
    """Whatever the text, it is a stable, slash-free name or an InvalidTopicNameError."""
    try:
        topic = TopicName.parse(name)
    except InvalidTopicNameError:
        return

    assert TopicName.parse(str(topic)) == topic
    assert str(topic).count("/") == 4
    assert len(str(topic).encode()) <= 800


def test_the_longest_name_may_have_partitions() -> None:
    """The limit is that of the topic's own name: partitions add their number."""
    topic = TopicName.parse("x" * 255)
    part = topic.partition(9_999)
    assert TopicName.parse(str(part)) == part
    assert part.partitioned == topic
    for too_long in ("x" * 256, "x" * 256 + "-partition-0"):
        with pytest.raises(InvalidTopicNameError, match="256 bytes"):
            TopicName.parse(too_long)


def test_the_cluster_of_pulsar_1_is_a_part_of_the_namespace() -> None:
    """A name with a cluster has a namespace of its own, and may have slashes after it."""
    name = TopicName.parse("persistent://t/standalone/n/a/b-partition-3")
    assert (name.tenant, name.namespace, name.local) == ("t", "t/standalone/n", "a/b-partition-3")
    assert str(name.partitioned) == "persistent://t/standalone/n/a/b"
    assert is_older_namespace(name.namespace)
    assert not is_older_namespace("t/n")
