"""Work that runs to its end."""

import asyncio
import logging

import pytest

from pulsemark.broker.background import Background
from pulsemark.broker.errors import RefusedError
from pulsemark.proto.pulsar_api_pb2 import ServerError


async def refuse():
    """Work that is refused, a little later."""
    await asyncio.sleep(0)
    raise RefusedError(ServerError.ServiceNotReady, "gone")


async def fail():
    """Work that fails by a mistake of our own, a little later."""
    await asyncio.sleep(0)
    raise ZeroDivisionError


async def given_up(work):
    """Cancel the caller that waits for the work, and let the work end."""
    background = Background()
    waiter = asyncio.ensure_future(background.run_to_end(work))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await background.settled()


@pytest.mark.parametrize(("work", "count"), [(refuse, 0), (fail, 1)])
async def test_what_no_one_waits_for_is_logged_unless_it_is_a_refusal(caplog, work, count):
    """A client that goes away while it is refused leaves no traceback; our mistakes are seen."""
    with caplog.at_level(logging.ERROR):
        await given_up(work())
    assert len(caplog.records) == count


async def test_those_who_wait_get_the_outcome(caplog):
    """The error is raised in the waiting caller, and is not logged."""
    with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError):
        await Background().run_to_end(fail())
    assert caplog.records == []
