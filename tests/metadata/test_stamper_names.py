"""A list of stampers as one line of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.metadata.stamper_names import join_stamper_names, split_stamper_names

NAMES = st.from_regex(r"[a-z-]{1,8}(:[a-z, ]*[a-z])?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        (" , ;", ()),
        ("index", ("index",)),
        ("broker-time,index", ("broker-time", "index")),
        (" broker-time , index ", ("broker-time", "index")),
        ("broker-time;index", ("broker-time", "index")),
        ("index,property-tags:region,app", ("index", "property-tags:region,app")),
        ("property-tags:region,app;index", ("property-tags:region,app", "index")),
        ("a:b:c,d", ("a:b:c,d",)),
        ("a:;b", ("a:", "b")),
    ],
)
def test_commas_separate_up_to_a_colon_and_semicolons_always(text, names):
    """What follows a name's colon is its argument, commas included, up to a semicolon."""
    assert split_stamper_names(text) == names


@given(st.lists(NAMES))
def test_a_joined_line_gives_the_names_again(names):
    """Whatever the arguments, as long as no semicolon is in them."""
    assert split_stamper_names(join_stamper_names(names)) == tuple(names)
