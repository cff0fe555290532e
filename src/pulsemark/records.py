"""Dataclasses that cost nothing at the start, and errors whose facts are such fields.

`dataclasses.dataclass` writes and compiles each class's methods when its module is imported: half a
millisecond a class, 20 ms for a broker's configuration. With a hundred classes that was a third of
a broker's start. The classes of `record` share one set of methods, which look the fields up. An
instance takes some microseconds more to make, so what is made for each message stays a `dataclass`.

To type checkers, `fields`, `replace` and `asdict` a record is a dataclass. It always has slots.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

__all__ = ["FactsError", "record"]


def _init(self: Any, /, *given: Any, **named: Any) -> None:
    places = self.__match_args__
    values = dict(zip(places, given, strict=False))
    if len(given) > len(places) or not values.keys().isdisjoint(named):
        raise TypeError(f"{type(self).__name__} takes each of {', '.join(places)} once")
    values.update(named)
    for spec in fields(self):
        if spec.init and spec.name in values:
            value = values.pop(spec.name)
        elif spec.default is not MISSING:
            value = spec.default
        elif spec.default_factory is not MISSING:
            value = spec.default_factory()
        elif spec.init:
            raise TypeError(f"{type(self).__name__} needs {spec.name}")
        else:  # `__post_init__` sets it
            continue
        object.__setattr__(self, spec.name, value)
    if values:
        raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")
    after = getattr(self, "__post_init__", None)
    if after is not None:
        after()


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, spec.name) for spec in fields(self) if spec.compare)


def _repr(self: Any) -> str:
    shown = (f"{spec.name}={getattr(self, spec.name)!r}" for spec in fields(self) if spec.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise FrozenInstanceError(f"cannot change field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, spec.name) for spec in fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for spec, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, spec.name, value)


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


class _Signature:
    """A record's signature for `help` and `inspect.signature`: its fields, as of a dataclass."""

    def __get__(self, _: Any, kind: Any) -> Any:
        from inspect import Parameter, Signature

        if kind.__init__ is not _init:
            raise AttributeError("__signature__")  # that of the class's own constructor is shown
        shown = []
        for spec in sorted(
            (each for each in fields(kind) if each.init), key=lambda each: bool(each.kw_only)
        ):
            default = Parameter.empty if spec.default is MISSING else spec.default
            if spec.default_factory is not MISSING:
                default = _Factory()
            place = Parameter.KEYWORD_ONLY if spec.kw_only else Parameter.POSITIONAL_OR_KEYWORD
            shown.append(Parameter(spec.name, place, default=default, annotation=spec.type))
        return Signature(shown, return_annotation=None)


_FROZEN = {
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(
        cls: Any = None, /, *, frozen: bool = False, kw_only: bool = False, eq: bool = True
    ) -> Any:
        """As `dataclass` with slots, and with the methods of all records."""
        methods = {"__init__": _init, "__repr__": _repr, "__signature__": _Signature()}
        if eq:
            methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
        if frozen:
            methods |= _FROZEN

        def made(cls: type) -> type:
            for name, method in methods.items():
                if name not in cls.__dict__:
                    setattr(cls, name, method)
            return dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=True)(cls)

        return made if cls is None else made(cls)


@dataclass_transform(eq_default=False)
class FactsError(Exception):
    """An error with facts: the fields that its class declares, as a dataclass does.

    A class gives its ``text`` with the fields' names in braces. The facts are attributes, also of a
    copy in another process. A class without any is an ordinary exception.
    """

    _text: ClassVar[str] = ""

    def __init_subclass__(cls, *, text: str | None = None) -> None:
        if text is not None:
            cls._text = text
        dataclass(init=False, repr=False, eq=False)(cls)
        if not TYPE_CHECKING and fields(cls) and "__init__" not in vars(cls):
            cls.__init__, cls.__signature__ = _init, _Signature()

    def __str__(self) -> str:
        return self._text.format(**vars(self)) if self._text else super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        facts = tuple(getattr(self, spec.name) for spec in fields(self))  # type: ignore[arg-type]
        return type(self), facts or self.args
