"""tests/data/public_api.txt: each public name with its signature.

A change of this file is a change that users of the library see.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from typing import Any

__all__ = ["public_api"]

#: Packages for users of the library. A name in another one may change at any time.
PACKAGES = (
    "pulsemark",
    "pulsemark.audit",
    "pulsemark.broker",
    "pulsemark.client",
    "pulsemark.compaction",
    "pulsemark.finder",
    "pulsemark.ledger",
    "pulsemark.metadata",
    "pulsemark.mirror",
    "pulsemark.pipeline",
    "pulsemark.testing",
    "pulsemark.wire",
)

#: A signature that is longer has a line for each parameter.
LINE = 100

INTRODUCTION = """\
# The public names of pulsemark, with their signatures. A test compares this file with the code.
# After a change that you want: python tools/write_references.py, and a line in CHANGELOG.md.
"""


def public_api() -> str:
    """The file's text."""
    lines = [INTRODUCTION]
    described: dict[int, str] = {}
    for package in reversed(PACKAGES):  # a name is described in its own package, not in the face
        module = importlib.import_module(package)
        found = [f"\n[{package}]\n"]
        for name in sorted(module.__all__):
            value = getattr(module, name)
            home = described.get(id(value))
            if home is not None and not isinstance(value, int | str | tuple):
                found.append(f"{name}: as {home}\n")
                continue
            described[id(value)] = f"{package}.{name}"
            found += [f"{line}\n" for line in _described(name, value)]
        lines.insert(1, "".join(found))
    return "".join(lines)


def _described(name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        return _class(name, value)
    if inspect.isroutine(value):
        return [f"def {name}{_signature(value)}"]
    if name == "__version__":
        return [name]
    return [f"{name}: {type(value).__name__}"]


def _class(name: str, value: type) -> list[str]:
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    lines = [f"class {name}({bases})" if bases else f"class {name}"]
    if issubclass(value, enum.Enum):
        return lines + [f"    {member.name}" for member in value]
    if not _is_ours(value):
        return lines
    if "__init__" in _own(value) or dataclasses.is_dataclass(value):
        # All records have one `__init__`; each class has its own signature.
        made = value.__init__ if "__signature__" not in _own(value) else value
        lines.append(f"    def __init__{_signature(made)}")
    lines += [
        f"    {_member(member, inspect.getattr_static(value, member))}"
        for member in sorted(_own(value))
        if not member.startswith("_")
    ]
    return lines


def _own(value: type) -> set[str]:
    """What the class and those of its bases that are ours define."""
    return {name for base in value.__mro__ if _is_ours(base) for name in vars(base)}


def _is_ours(value: type) -> bool:
    return value.__module__.startswith("pulsemark.") and "_pb2" not in value.__module__


def _member(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"{name}: property"
    kind = ""
    if isinstance(value, classmethod | staticmethod):
        kind, value = f"{type(value).__name__} ", value.__func__
    if inspect.isroutine(value):
        how = "async " if inspect.iscoroutinefunction(value) else ""
        return f"{kind}{how}def {name}{_signature(value)}"
    return f"{name}: attribute"


def _signature(value: Any) -> str:
    """In one line, or with a line for each parameter, so that changes are easy to merge."""
    try:
        signature = inspect.signature(value)
        if isinstance(value, type):
            of_self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
            places = [of_self, *signature.parameters.values()]
            signature = signature.replace(parameters=places)
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(r" at 0x[0-9a-f]+", "", str(signature))
    if len(text) <= LINE:
        return text
    parameters = [re.sub(r" at 0x[0-9a-f]+", "", str(p)) for p in signature.parameters.values()]
    shown = "".join(f"\n        {parameter}" for parameter in parameters)
    return f"{shown}\n        -> {signature.return_annotation}"
