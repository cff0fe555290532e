"""The names of topics, by namespace, and the refusals of names that are not valid."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.topics.topic_names import TopicNames
from pulsemark.client import RequestRefusedError

names = st.builds(
    "persistent://{}/{}".format,
    st.sampled_from(["public/default", "public/other", "p/d"]),
    st.sampled_from(["a", "b", "a-partition-0", "z/y".replace("/", "_"), "b b"]),
)


@given(st.lists(names), st.lists(st.tuples(st.booleans(), names)))
def test_it_behaves_like_a_set(first, steps):
    """Names of a namespace come sorted, once each, and counts agree with them."""
    found, model = TopicNames(first), set(first)
    for is_added, name in steps:
        if is_added:
            found.add(name)
            model.add(name)
        else:
            found.discard(name)
            model.discard(name)
    for namespace in ("public/default", "public/other", "p/d", "absent/absent"):
        wanted = sorted(name for name in model if f"://{namespace}/" in name)
        assert found.of(namespace) == wanted
    assert (set(found), len(found)) == (model, len(model))
    assert found.counts() == Counter(n.partition("://")[2].rpartition("/")[0] for n in model)


def test_a_namespace_costs_as_much_as_it_has_names(steps_of):
    """Names of other namespaces are not visited, and nothing is sorted again."""
    few = TopicNames(f"persistent://public/default/{n}" for n in range(3))
    many = TopicNames(f"persistent://public/n{n % 9}/{n}" for n in range(3_000))
    for name in few:
        many.add(name)
    assert steps_of(lambda: many.of("public/default")) == steps_of(lambda: few.of("public/default"))


BLANK = "Topic local name must not be blank."
SHORT = "it should be in the format of <tenant>/<namespace>/<topic> or <topic>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("persistent://public/default", "Invalid topic name: persistent://public/default"),
        ("", f"Invalid short topic name '', {SHORT}"),
        ("a/b", f"Invalid short topic name 'a/b', {SHORT}"),
        ("x://public/default/t", "Invalid topic domain: 'x'"),
        ("persistent:///a/b", "Invalid namespace format. namespace: /a"),
        (
            "persistent://public/default/ ",
            f"Invalid topic name: persistent://public/default/ . {BLANK}",
        ),
    ],
)
def test_an_invalid_name_is_refused_in_pulsars_words(raw, name, text):
    """LOOKUP and PARTITIONED_METADATA answer InvalidTopicName with the reason."""
    for ask in (raw.lookup, raw.partitions):
        with pytest.raises(RequestRefusedError) as caught:
            ask(name)
        assert caught.value.error_name == "InvalidTopicName"
        assert caught.value.message == f"Invalid topic name: {text}"


def test_an_absent_namespace_has_a_text_of_its_own_for_each_command(raw):
    """Not found at lookup; a producer, which has looked the topic up, is to do that again."""
    name = "persistent://public/nowhere/t"
    with pytest.raises(RequestRefusedError) as caught:
        raw.lookup(name)
    assert caught.value.message == "Namespace not found"
    with pytest.raises(RequestRefusedError, match="redo the lookup") as caught:
        raw.create_producer(name)
    assert caught.value.error_name == "ServiceNotReady"
