"""The one place where all builders are found."""

from __future__ import annotations

from pulsemark.wire import commands, requests, responses


def test_every_builder_is_exported() -> None:
    """No public builder of requests or responses is missing from `commands`."""
    public = {
        name
        for module in (requests, responses)
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    }

    assert public <= set(commands.__all__)
    assert all(hasattr(commands, name) for name in commands.__all__)


def test_protocol_constants_are_pulsars() -> None:
    """The newest protocol is 21; what a broker starts has the request id 2^64-1."""
    assert commands.PROTOCOL_VERSION == 21
    assert commands.NO_REQUEST_ID == 2**64 - 1
