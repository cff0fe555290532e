"""The names of topics, by namespace."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.topics.topic_names import TopicNames

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
