"""The user's function of a replay, and the messages that it gets and returns.

    def anonymous(message: ReplayMessage) -> ReplayMessage | None:
        return message.replaced(key=None)

It is called once for each message, in the topic's order. It returns the message to publish, or None
to leave it out, or a list of messages. A task that is repeated calls it again for messages that
were not confirmed, so it must give the same result each time.
"""

from __future__ import annotations

import base64
import importlib
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import OptionError

__all__ = ["ReplayFunction", "ReplayMessage", "load_function", "name_of", "packed", "unpacked"]


@dataclass(frozen=True, slots=True)
class ReplayMessage:
    """A message of the source, or one to publish. Times are milliseconds since the epoch."""

    topic: str
    """The source's topic; where a message goes is not changed by it."""
    index: int
    """Its index in the source."""
    value: bytes | None
    """None: a null message."""
    key: bytes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int | None = None
    publish_time_ms: int = 0
    """By the producer's clock; the published message has it too."""
    broker_time_ms: int | None = None
    """By the stamp; None without one."""

    def replaced(self, **fields: Any) -> ReplayMessage:
        """The message with other fields."""
        return replace(self, **fields)


ReplayFunction: TypeAlias = Callable[
    [ReplayMessage], ReplayMessage | Iterable[ReplayMessage] | None
]


def load_function(text: str) -> ReplayFunction:
    """The function of ``module:function``; modules of the current folder are found, too.

    Raises:
        OptionError: there is no such function.
    """
    module_name, separator, name = text.partition(":")
    if not separator or not module_name or not name:
        raise OptionError("function", text, "is not of the form MODULE:FUNCTION")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # the user's module may raise anything
        reason = f"cannot be loaded: {type(error).__name__}: {error}"
        raise OptionError("function", text, reason) from error
    if not callable(found):
        raise OptionError("function", text, f"is a {type(found).__name__}, which cannot be called")
    function: ReplayFunction = found
    return function


def name_of(function: ReplayFunction) -> str:
    """``module:function``: by it a replay that goes on sees that its function is the same."""
    module = getattr(function, "__module__", "?")
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"


def packed(function: ReplayFunction) -> str:
    """The function as text, for workers that may not have its module.

    Raises:
        OptionError: it holds something that cannot be sent to a worker.
    """
    pickler = _pickler()

    module = sys.modules.get(getattr(function, "__module__", "") or "")
    # Installed packages are there in the workers; a file of the user's may be not.
    is_installed = module is None or "site-packages" in str(getattr(module, "__file__", "") or "")
    try:
        if is_installed or module is None or module.__name__ == "__main__":
            return base64.b64encode(pickler.dumps(function)).decode()
        pickler.register_pickle_by_value(module)
        try:
            return base64.b64encode(pickler.dumps(function)).decode()
        finally:
            pickler.unregister_pickle_by_value(module)
    except Exception as error:  # pickling runs code of any class
        reason = f"cannot be sent to workers: {type(error).__name__}: {error}"
        raise OptionError("function", name_of(function), reason) from error


def _pickler() -> Any:
    from pyspark import cloudpickle

    return cloudpickle


def unpacked(text: str) -> ReplayFunction:
    """The function of `packed`; only for text of this job's own driver."""
    function: ReplayFunction = pickle.loads(base64.b64decode(text))  # noqa: S301
    return function
