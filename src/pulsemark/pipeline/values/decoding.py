"""Decode the values of one topic, a batch of rows at a time, into one Arrow array.

Each decoder gets the values with their schema versions and returns the decoded array, with the
reason for each value that cannot be decoded (its row is null). A value has the version that its
producer's metadata names. Without one it is decoded by the reader's schema, as in Pulsar's clients.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.json

from .avro_types import AvroType, avro_type, without_times

Reasons = dict[int, str]
"""By row: why its value cannot be decoded."""
_OPENING, _CLOSING = ord("{"), ord("}")
_REASON_LENGTH = 200


class Decoder(Protocol):
    """Decodes values."""

    def decode(self, values: pa.Array, versions: Sequence[int | None]) -> tuple[pa.Array, Reasons]:
        """The values of these rows; null ones stay null."""


class _Building:
    """Builds the array of decoded values: first as stored, then with times as times."""

    def __init__(self, type_: AvroType, final: pa.DataType) -> None:
        self._raw = type_.arrow_type(times=False)
        self._timed = type_.arrow_type(times=True)
        self._final = final

    def array(self, values: Sequence[Any], reasons: Reasons) -> pa.Array:
        """The array; values that do not fit the type are noted in ``reasons``."""
        try:
            return self.finished(pa.array(values, self._raw))
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            kept = list(values)
            for row, value in enumerate(kept):
                try:
                    self.finished(pa.array([value], self._raw))
                except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                    kept[row], reasons[row] = None, _shortened(error)
            return self.finished(pa.array(kept, self._raw))

    def finished(self, array: pa.Array) -> pa.Array:
        """An array as stored in the type that Spark asked for."""
        for wanted in (self._timed, self._final):
            if array.type != wanted:
                array = array.cast(wanted)
        return array


class AvroDecoder:
    """Avro's binary encoding; each version is resolved against the reader's schema.

    Args:
        definitions: the topic's versions from 0 on, parsed; None: not Avro.
        reader: the reader's schema, parsed.
        final: the Arrow type that Spark asked for.
    """

    def __init__(self, definitions: Sequence[Any], reader: Any, final: pa.DataType) -> None:
        self._definitions = definitions
        self._reader = fastavro.parse_schema(without_times(reader))
        self._reader_definition = reader
        self._building = _Building(avro_type(reader), final)
        self._writers: dict[int | None, Any] = {None: self._reader}

    def decode(self, values: pa.Array, versions: Sequence[int | None]) -> tuple[pa.Array, Reasons]:
        """The records of these rows."""
        decoded: list[Any] = []
        reasons: Reasons = {}
        read, reader = fastavro.schemaless_reader, self._reader
        for row, value in enumerate(values.to_pylist()):
            record = None
            if value is not None:
                try:
                    writer = self._writer(versions[row])
                    with io.BytesIO(value) as data:
                        record = read(data, writer, None if writer is reader else reader)
                except Exception as error:  # noqa: BLE001
                    # The library raises many types of errors for malformed bytes.
                    reasons[row] = _shortened(error)
            decoded.append(record)
        return self._building.array(decoded, reasons), reasons

    def _writer(self, version: int | None) -> Any:
        known = self._writers.get(version)
        if known is None:
            assert version is not None, "the reader's own schema is known"
            if version >= len(self._definitions) or self._definitions[version] is None:
                raise ValueError(f"schema version {version} is not an Avro schema in the catalog")
            definition = self._definitions[version]
            if definition == self._reader_definition:
                known = self._reader
            else:
                avro_type(definition)  # refuses what must not be decoded
                known = fastavro.parse_schema(without_times(definition))
            self._writers[version] = known
        return known


class JsonDecoder:
    """JSON text, as Pulsar's JSON schema writes it; fields are found by their names.

    Fields that the reader's schema does not have are left out; missing ones are null. The version
    of a value does not matter.
    """

    def __init__(self, reader: Any, final: pa.DataType) -> None:
        type_ = avro_type(reader)
        self._building = _Building(type_, final)
        self._check = _checker(type_)
        raw = type_.arrow_type(times=False)
        # Arrow's reader knows neither maps nor base64.
        is_plain = pa.types.is_struct(raw) and type_.kinds().isdisjoint(
            {"map", "bytes", "fixed", "decimal"}
        )
        self._schema = pa.schema(list(raw)) if is_plain and raw.num_fields else None

    def decode(self, values: pa.Array, versions: Sequence[int | None]) -> tuple[pa.Array, Reasons]:
        """The records of these rows."""
        del versions
        fast = self._at_once(values)
        if fast is not None:
            return fast, {}
        decoded: list[Any] = []
        reasons: Reasons = {}
        for row, value in enumerate(values.to_pylist()):
            record = None
            if value is not None:
                try:
                    record = self._check(json.loads(value))
                except (ValueError, RecursionError) as error:
                    reasons[row] = _shortened(error)
            decoded.append(record)
        return self._building.array(decoded, reasons), reasons

    def _at_once(self, values: pa.Array) -> pa.Array | None:
        """All values in one call; None if one of them is not a plain object of the schema.

        The values are joined by line ends. Each begins with ``{`` and ends with ``}``. After ``}``,
        a ``{`` can only begin a new object, so no object reaches from one value into the next, and
        each value is at least one object. If there are as many objects as values, each is one.
        """
        present = values.drop_null()
        if self._schema is None or not len(present) or not _are_objects(present):
            return None
        try:
            present.cast(pa.string())  # checks UTF-8
            text = b"\n".join(present.to_pylist())
            table = pyarrow.json.read_json(
                io.BytesIO(text),
                pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                pyarrow.json.ParseOptions(
                    explicit_schema=self._schema,
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore",
                ),
            )
            if len(table) != len(present):
                return None
            (records,) = table.to_struct_array().chunks
            found = self._building.finished(records)
        except (pa.ArrowException, ValueError):
            return None
        if len(present) == len(values):
            return found
        rows = np.cumsum(values.is_valid().to_numpy(zero_copy_only=False)) - 1
        return found.take(pa.array(rows, mask=values.is_null().to_numpy(zero_copy_only=False)))


def _are_objects(values: pa.Array) -> bool:
    """Whether each value begins with an opening brace and ends with a closing one."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    data = values.buffers()[2]
    if data is None or bool((np.diff(offsets) < 2).any()):
        return False
    octets = np.frombuffer(data, np.uint8)
    opens, closes = octets[offsets[:-1]] == _OPENING, octets[offsets[1:] - 1] == _CLOSING
    return bool(opens.all() and closes.all())


def _checker(type_: AvroType) -> Callable[[Any], Any]:
    """A function that gives a parsed JSON value the form of the type; raises ValueError."""
    import base64
    from decimal import Decimal

    if type_.kind == "record":
        fields = {name: _checker(each) for name, each in type_.fields.items()}

        def record(value: Any) -> Any:
            if not isinstance(value, dict):
                raise ValueError(f"{_shown(value)} is not an object")
            return {
                name: check(value[name])
                for name, check in fields.items()
                if value.get(name) is not None
            }

        return record
    if type_.item is not None:
        inner, is_array = _checker(type_.item), type_.kind == "array"

        def several(value: Any) -> Any:
            if is_array and isinstance(value, list):
                return [None if item is None else inner(item) for item in value]
            if not is_array and isinstance(value, dict):
                return {k: None if v is None else inner(v) for k, v in value.items()}
            raise ValueError(f"{_shown(value)} is not of type {type_.kind}")

        return several
    if type_.kind in ("bytes", "fixed"):
        is_decimal = type_.logical == "decimal"

        def octets(value: Any) -> Any:
            if is_decimal and isinstance(value, int | float | str):
                return Decimal(str(value))
            if not isinstance(value, str):
                raise ValueError(f"{_shown(value)} is not base64")
            return base64.b64decode(value, validate=True)

        return octets
    return _plain_checker(type_.kind)


def _plain_checker(kind: str) -> Callable[[Any], Any]:
    accepted: tuple[type, ...] = {
        "boolean": (bool,),
        "int": (int,),
        "long": (int,),
        "float": (int, float),
        "double": (int, float),
    }.get(kind, (str,))

    def plain(value: Any) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind != "boolean"):
            raise ValueError(f"{_shown(value)} is not of type {kind}")
        return value

    return plain


def _shown(value: Any) -> str:
    return repr(value)[:60]


def _shortened(error: BaseException) -> str:
    """The reason on one line, not longer than a few words of foreign data allow."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:_REASON_LENGTH]
