"""The type of the tables that the handler modules export: command type -> handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ..services import Session

__all__ = ["CommandTable"]

#: BaseCommand.Type -> a function of the session and the command's body. It must not block. A
#: `RefusedError` that it raises is answered with an ERROR.
CommandTable: TypeAlias = "dict[int, Callable[[Session, Any], None]]"
