"""Arrow's types as those of a table's columns: how two become one, and one form for each."""

from __future__ import annotations

import pyarrow as pa

_WIDENED = ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def merged_type(old: pa.DataType, new: pa.DataType, *, widens: bool = True) -> pa.DataType:
    """The type that has the values of both: fields of either, and the wider of two numbers.

    Args:
        old: the type that values have had so far.
        new: the type that they have from now on.
        widens: whether a wider type may take the place of the old one.

    Raises ValueError: there is no such type; it lists the differences.
    """
    problems: list[str] = []
    found = _merged(old, new, "", widens, problems)
    if problems:
        raise ValueError("; ".join(problems))
    return found


def _merged(
    old: pa.DataType, new: pa.DataType, path: str, widens: bool, problems: list[str]
) -> pa.DataType:
    kinds = pa.types
    if kinds.is_struct(old) and kinds.is_struct(new):
        fields = {field.name: field.type for field in old}
        for field in new:
            inner = f"{path}.{field.name}".lstrip(".")
            before = fields.get(field.name, field.type)
            fields[field.name] = _merged(before, field.type, inner, widens, problems)
        return pa.struct(list(fields.items()))
    if kinds.is_map(old) and kinds.is_map(new):
        inner = f"{path}.value"
        return pa.map_(old.key_type, _merged(old.item_type, new.item_type, inner, widens, problems))
    if kinds.is_list(old) and kinds.is_list(new):
        inner = f"{path}.element"
        return pa.list_(_merged(old.value_type, new.value_type, inner, widens, problems))
    if old == new or _is_wider(old, new):
        return old
    if not widens or not _is_wider(new, old):
        problems.append(f"{path or 'the value'} is {old}, and would be {new}")
        return old
    return new


def _is_wider(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a type has all values of a narrower one."""
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    return (narrow, wide) in _WIDENED


def plain_type(type_: pa.DataType) -> pa.DataType:
    """A library's type in the form that is used here: no large or read-only views, all nullable."""
    kinds = pa.types
    if kinds.is_struct(type_):
        return pa.struct([(field.name, plain_type(field.type)) for field in type_])
    if kinds.is_map(type_):
        return pa.map_(plain_type(type_.key_type), plain_type(type_.item_type))
    if kinds.is_list(type_) or kinds.is_large_list(type_):
        return pa.list_(plain_type(type_.value_type))
    if kinds.is_large_string(type_) or kinds.is_string_view(type_):
        return pa.string()
    if kinds.is_large_binary(type_) or kinds.is_binary_view(type_):
        return pa.binary()
    return type_
