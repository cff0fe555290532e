"""What is wrong with a body that is not JSON, in Pulsar's words."""

from __future__ import annotations

import json

import pytest

from pulsemark.broker.http.json_errors import json_problem

SOURCE = "[Source: REDACTED (`StreamReadFeature.INCLUDE_SOURCE_IN_LOCATION` disabled)"
VALUES = "(JSON String, Number, Array, Object or token 'null', 'true' or 'false')"


@pytest.mark.parametrize(
    ("text", "reason", "column"),
    [
        (
            "{nojson",
            "Unexpected character ('n' (code 110)): was expecting double-quote to start field name",
            2,
        ),
        (
            "{'a':1}",
            "Unexpected character (''' (code 39)): was expecting double-quote to start field name",
            2,
        ),
        ("x", f"Unrecognized token 'x': was expecting {VALUES}", 2),
        ("01", "Invalid numeric value: Leading zeroes not allowed", 2),
        ("[1, 02]", "Invalid numeric value: Leading zeroes not allowed", 6),
        ("nul", f"Unrecognized token 'nul': was expecting {VALUES}", 4),
        ('{"a":["b"]} x', f"Unrecognized token 'x': was expecting {VALUES}", 14),
        (
            '{"a"}',
            (
                "Unexpected character ('}' (code 125)): was expecting a colon to separate "
                "field name and value"
            ),
            5,
        ),
        ('{"a":}', "Unexpected character ('}' (code 125)): expected a value", 6),
        ('"abc', "Unexpected end-of-input in VALUE_STRING", 5),
        ("<a>", f"Unexpected character ('<' (code 60)): expected a valid value {VALUES}", 1),
        (
            "{",
            (
                "Unexpected end-of-input: expected close marker for Object (start marker at "
                f"{SOURCE}; line: 1, column: 1])"
            ),
            2,
        ),
        (
            '{"a":["b"]',
            (
                "Unexpected end-of-input: expected close marker for Object (start marker at "
                f"{SOURCE}; line: 1, column: 1])"
            ),
            11,
        ),
    ],
)
def test_reasons_are_those_of_a_real_pulsar(text: str, reason: str, column: int) -> None:
    """Reason and place, as a Pulsar 4.0.8 answered to the same body."""
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    expected = f"{reason}\n at {SOURCE}; line: 1, column: {column}]"
    assert json_problem(text, caught.value) == expected
