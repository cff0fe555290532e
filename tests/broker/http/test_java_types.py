"""Bodies of a wrong type, and Pulsar's texts about them, as Pulsar 4.0.8 answered them."""

from __future__ import annotations

import pytest

from pulsemark.broker.http.java_bodies import (
    BODIES,
    NAMESPACE_POLICIES,
    PLACE,
    SETTINGS,
    TENANT,
    TEXTS,
)
from pulsemark.broker.http.java_types import (
    BOXED_INT,
    INT,
    LONG,
    JavaType,
    JavaTypeError,
    check_type,
)
from pulsemark.broker.http.routing import ROUTES

SOURCE = "[Source: REDACTED (`StreamReadFeature.INCLUDE_SOURCE_IN_LOCATION` disabled)"
DATA = "org.apache.pulsar.common.policies.data"
RETENTION = SETTINGS["retention"]
TYPES = SETTINGS["subscriptionTypesEnabled"]


@pytest.mark.parametrize(
    ("java", "body", "text", "column", "way"),
    [
        (INT, "[1]", ("Cannot deserialize value of type `int` from Array value (token "
         "`JsonToken.START_ARRAY`)"), 1, ""),
        (INT, '  "1.5"', ('Cannot deserialize value of type `int` from String "1.5": not a valid '
         "`int` value"), 3, ""),
        (INT, '"99999999999"', ('Cannot deserialize value of type `int` from String "99999999999": '
         "Overflow: numeric value (99999999999) out of range of int (-2147483648 -2147483647)"),
         1, ""),
        (BOXED_INT, '"99999999999"', ("Cannot deserialize value of type `java.lang.Integer` from "
         'String "99999999999": Overflow: numeric value (99999999999) out of range of '
         "`java.lang.Integer` (-2147483648 -2147483647)"), 1, ""),
        (LONG, '"99999999999999999999999"', ("Cannot deserialize value of type `long` from String "
         '"99999999999999999999999": not a valid `long` value'), 1, ""),
        (RETENTION, '{"retentionTimeInMinutes":99999999999}', ("Numeric value (99999999999) out of "
         "range of int (-2147483648 - 2147483647)"), 38,
         f'{DATA}.RetentionPolicies["retentionTimeInMinutes"]'),
        (RETENTION, '{"é":1,"retentionTimeInMinutes":{}}',
         ("Cannot deserialize value of type `int` "
         "from Object value (token `JsonToken.START_OBJECT`)"), 34,
         f'{DATA}.RetentionPolicies["retentionTimeInMinutes"]'),
        (RETENTION, '{"x":[],"retentionTimeInMinutes":1,"retentionTimeInMinutes":{}}',
         ("Cannot deserialize value of type `int` from Object value (token "
         "`JsonToken.START_OBJECT`)"), 61, f'{DATA}.RetentionPolicies["retentionTimeInMinutes"]'),
        (RETENTION, "1e5", (f"Cannot construct instance of `{DATA}.RetentionPolicies` (although at "
         "least one Creator exists): no double/Double-argument constructor/factory method to "
         "deserialize from Number value (100000.0)"), 1, ""),
        (RETENTION, '" "', (f'Cannot coerce empty String ("") to `{DATA}.RetentionPolicies` value '
         "(but could if coercion was enabled using `CoercionConfig`)"), 1, ""),
        (TENANT, '{"allowedClusters":[[]]}', ("Cannot deserialize value of type `java.lang.String` "
         "from Array value (token `JsonToken.START_ARRAY`)"), 21,
         f'{DATA}.TenantInfoImpl["allowedClusters"]->java.util.HashSet[0]'),
        (TENANT, '{"allowedClusters":""}', ('Cannot coerce empty String ("") to element of '
         "`java.util.HashSet` (but could if coercion was enabled using `CoercionConfig`)"), 20,
         f'{DATA}.TenantInfoImpl["allowedClusters"]'),
        (TYPES, '"Shared"', ("Cannot deserialize value of type `java.util.HashSet<"
         "org.apache.pulsar.client.api.SubscriptionType>` from String value (token "
         "`JsonToken.VALUE_STRING`)"), 1, ""),
        (NAMESPACE_POLICIES, '{"bundles":{"numBundles":"x"}}', ("Cannot deserialize value of type "
         '`int` from String "x": not a valid `int` value'), 26,
         f'{DATA}.Policies["bundles"]->{DATA}.impl.BundlesDataImpl["numBundles"]'),
        (TEXTS, '{"a":[]}', ("Cannot deserialize value of type `java.lang.String` from Array value "
         "(token `JsonToken.START_ARRAY`)"), 6, 'java.util.LinkedHashMap["a"]'),
        (PLACE, '"x"', ("Cannot construct instance of `org.apache.pulsar.client.impl."
         "ResetCursorData`, problem: Invalid value x for the position. Allowed values are "
         "[latest, earliest]"), 1, ""),
    ],
)  # fmt: skip
def test_the_text_is_pulsars(java: JavaType, body: str, text: str, column: int, way: str) -> None:
    """What cannot be read is named with its type, its place in bytes and the way to it."""
    with pytest.raises(JavaTypeError) as caught:
        check_type(body, java)
    chain = f" (through reference chain: {way})" if way else ""
    assert str(caught.value) == f"{text}\n at {SOURCE}; line: 1, column: {column}]{chain}"


@pytest.mark.parametrize(
    ("java", "body"),
    [
        (INT, '"7"'),
        (INT, '""'),
        (INT, '"null"'),
        (INT, "1.9"),
        (INT, "null"),
        (
            RETENTION,
            '{"unknown":[{"a":"]}"}],"retentionTimeInMinutes": "5" ,"x":1}',
        ),
        (RETENTION, "{}"),
        (SETTINGS["deduplication"], "3"),
        (SETTINGS["autoSubscriptionCreation"], "true"),
        (TYPES, '["Nope", 1, null]'),
        (TYPES, " [ ] "),
        (PLACE, '"latest"'),
        (TENANT, '{"allowedClusters":[5,true]}'),
    ],
)
def test_what_jackson_reads_is_no_error(java: JavaType, body: str) -> None:
    """Texts of numbers, fractions, null, unknown fields and names are read as Pulsar reads them."""
    check_type(body, java)


def test_every_body_belongs_to_a_route() -> None:
    """A type that no route takes would check nothing."""
    served = {(route.method, route.template) for route in ROUTES}
    assert set(BODIES) <= served
    parts = {route.template.rpartition("/")[2] for route in ROUTES}
    assert set(SETTINGS) <= parts
