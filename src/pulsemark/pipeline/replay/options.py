"""What a user chooses for a replay: its options, and a function that maps the messages.

Both are checked before Spark starts. A function is called once for each message, in the topic's
order:

    def anonymous(message: ReplayMessage) -> ReplayMessage | None:
        return message.replaced(key=None)

It returns the message to publish, or None to leave it out, or a list of messages. A task that is
repeated calls it again for messages that were not confirmed, so it must give the same result each
time.
"""

from __future__ import annotations

import base64
import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ...client import Service, ServiceUrlError
from ...metadata.partition_names import partition_name, partition_of
from ..errors import OptionError
from ..options import full_topic_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Where entries go, and how."""

    service_url: str
    """Of the target: ``pulsar://HOST:PORT``."""
    target_topic: str | None = None
    """None: each topic goes to the topic of its own name."""
    function: ReplayFunction | None = None
    """None: entries go as they are."""
    messages_per_s: float | None = None
    """Over all tasks."""
    bytes_per_s: float | None = None
    """Over all tasks; bytes of entries as they are published."""
    without_deduplication: bool = False
    """Replay also into a topic that does not deduplicate."""
    token: str | None = None
    """A token for authentication at the target."""
    reconnect_s: float = 60.0
    """How long the target may be away, without anything being stored meanwhile."""

    def checked(self) -> ReplayOptions:
        """These options, with the full name of the target topic.

        Raises:
            OptionError: one of them is malformed.
        """
        try:
            Service(self.service_url)
        except ServiceUrlError as error:
            raise OptionError("serviceUrl", self.service_url, error.reason) from error
        for name, value in (
            ("messagesPerSecond", self.messages_per_s),
            ("bytesPerSecond", self.bytes_per_s),
        ):
            if value is not None and not 0 < value < 1e15:
                raise OptionError(name, f"{value:g}", "is not above 0")
        if not 0 <= self.reconnect_s <= 86_400:
            raise OptionError("reconnectS", f"{self.reconnect_s:g}", "is not from 0 to 86400")
        if self.target_topic is None:
            return self
        try:
            name = full_topic_name(self.target_topic)
        except ValueError as error:
            raise OptionError("targetTopic", self.target_topic, str(error)) from error
        return self.with_fields(target_topic=name)

    def with_fields(self, **fields: Any) -> ReplayOptions:
        """These options with others."""
        return replace(self, **fields)


def service_of(options: ReplayOptions) -> Service:
    """The target's cluster; nothing is connected yet."""
    if options.token is None:
        return Service(options.service_url)
    return Service(options.service_url, auth_method_name="token", auth_data=options.token.encode())


def target_topic_of(topic: str, options: ReplayOptions) -> str:
    """Where a source topic goes. A partition goes to the partition of the same number."""
    if options.target_topic is None:
        return topic
    _, index = partition_of(topic)
    if index >= 0 and partition_of(options.target_topic)[1] < 0:
        return partition_name(options.target_topic, index)
    return options.target_topic


def settings_of(
    path: str | os.PathLike[str],
    topics: Sequence[str] | None,
    bounds: Mapping[str, str],
    options: ReplayOptions,
    function: str | None,
) -> dict[str, Any]:
    """What must not change when a replay goes on; speed and credentials may."""
    return {
        "path": str(Path(path).absolute()),
        "topics": None if topics is None else sorted(topics),
        **{name: bounds.get(name) for name in _BOUNDS},
        "serviceUrl": options.service_url,
        "targetTopic": options.target_topic,
        "function": function,
    }


_BOUNDS = ("startingTime", "endingTime", "startingOffsets", "endingOffsets")


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
