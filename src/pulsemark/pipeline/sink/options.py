"""The sink's options, parsed once and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...client import Service, ServiceUrlError
from ..option_values import Given, integer
from ..options import full_topic_name

DEFAULT_PRODUCER_NAME = "spark"
DEFAULT_MAX_MESSAGES = 1_000
DEFAULT_MAX_BYTES = 128 * 1024
"""As in Pulsar's clients."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows go, and how."""

    service_url: str
    topic: str | None = None
    """The topic of all rows; None: the column ``topic`` names it."""
    producer_name: str = DEFAULT_PRODUCER_NAME
    """How the producers' names begin."""
    batching_max_messages: int = DEFAULT_MAX_MESSAGES
    batching_max_bytes: int = DEFAULT_MAX_BYTES
    write_id: str | None = None
    """The name of a batch write; a repeated write of the same name stores each row once."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read the options of ``df.write.format("pulsar-ledger")``.

        Raises:
            OptionError: an option is unknown, missing or malformed.
        """
        # Spark adds these to a stream's options by itself.
        given = Given({k: v for k, v in options.items() if k.lower() not in _OF_SPARK})
        service_url = given.get("serviceUrl", _service_url, None)
        if service_url is None:
            service_url = given.required("service.url", _service_url)
        parsed = cls(
            service_url,
            given.get("topic", full_topic_name, None),
            given.get("producerName", _name, DEFAULT_PRODUCER_NAME),
            given.get("batchingMaxMessages", integer(1, 1 << 18), DEFAULT_MAX_MESSAGES),
            given.get("batchingMaxBytes", integer(1, 5 << 20), DEFAULT_MAX_BYTES),
            given.get("writeId", _name, None),
        )
        given.refuse_unknown()
        return parsed


_OF_SPARK = ("checkpointlocation", "path", "queryname")


def _service_url(text: str) -> str:
    try:
        Service(text)
    except ServiceUrlError as error:
        raise ValueError(str(error)) from error
    return text


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text
