"""Bodies of requests: which kinds of JSON are read, as by Pulsar 4.0.8, and which are 400."""

from __future__ import annotations

import json

import pytest

from pulsemark.broker.http.bodies import (
    BOXED_INT,
    INT,
    LONG,
    NAMESPACE_POLICIES,
    PLACE,
    SETTINGS,
    TENANT,
    TEXTS,
    Kind,
)
from pulsemark.broker.http.messages import HttpError
from pulsemark.broker.http.routing import ROUTES

RETENTION = SETTINGS["retention"]
TYPES = SETTINGS["subscriptionTypesEnabled"]


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (INT, "[1]", "the body must be a whole number of 32 bits, not a list"),
        (INT, '"1.5"', "the body must be a whole number of 32 bits, not '1.5'"),
        (INT, "true", "the body must be a whole number of 32 bits, not True"),
        (BOXED_INT, "2147483648", "the body must be a whole number of 32 bits, not 2147483648"),
        (LONG, '"9223372036854775808"', "whole number of 64 bits, not '9223372036854775808'"),
        (
            RETENTION,
            '{"retentionTimeInMinutes":{}}',
            "'retentionTimeInMinutes' of the body must be a whole number of 32 bits, not an object",
        ),
        (RETENTION, '" "', "the body must be an object, not ' '"),
        (RETENTION, "[]", "the body must be an object, not a list"),
        (TENANT, '{"allowedClusters":[[]]}', "0 of 'allowedClusters' of the body must be a text"),
        (TENANT, '{"allowedClusters":""}', "'allowedClusters' of the body must be a list, not ''"),
        (TYPES, '"Shared"', "the body must be a list, not 'Shared'"),
        (TYPES, "[1.5]", "0 of the body must be a text, not 1.5"),
        (NAMESPACE_POLICIES, '{"bundles":{"numBundles":"x"}}', "'numBundles' of 'bundles' of the"),
        (TEXTS, '{"a":[]}', "'a' of the body must be a text, not a list"),
        (PLACE, '"x"', "the body must be an object, not 'x'"),
        (SETTINGS["deduplication"], '"yes"', "the body must be true or false, not 'yes'"),
    ],
)
def test_a_body_of_another_kind_is_named_with_its_place(kind: Kind, body: str, reason: str) -> None:
    """The answer is 400, and says where which kind was expected and what came."""
    with pytest.raises(HttpError) as caught:
        kind.check(json.loads(body))
    assert caught.value.status == 400
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (INT, '"7"'),
        (INT, '""'),
        (INT, '"null"'),
        (INT, "1.9"),
        (INT, "null"),
        (RETENTION, '{"unknown":[{"a":"]"}],"retentionTimeInMinutes": "5" ,"x":1}'),
        (RETENTION, "{}"),
        (SETTINGS["deduplication"], "3"),
        (SETTINGS["autoSubscriptionCreation"], "true"),
        (TYPES, '["Nope", 1, null]'),
        (TYPES, " [ ] "),
        (PLACE, '"latest"'),
        (TENANT, '{"allowedClusters":[5,true]}'),
    ],
)
def test_what_pulsar_reads_is_read(kind: Kind, body: str) -> None:
    """Texts of numbers, fractions, null, unknown members and names are no errors."""
    kind.check(json.loads(body))


def test_every_policys_kind_belongs_to_a_route() -> None:
    """A kind that no route takes would check nothing."""
    used = {id(route.body) for route in ROUTES}
    assert [name for name, kind in SETTINGS.items() if id(kind) not in used] == []
