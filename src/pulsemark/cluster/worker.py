"""One worker: `python -m pulsemark.cluster.worker FILE`, started by the supervisor alone.

The file has the worker's configuration. When the worker is ready it prints one line of JSON; it
ends with SIGTERM, or when the supervisor has gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

from ..broker import Broker, BrokerConfig, new_event_loop
from ..broker.errors import BrokerError
from ..broker.gc_tuning import Collector
from ..broker.server import PORTS, TLS_PORTS
from ..coordination import CoordinationError, State
from ..ledger import LedgerError
from ..until_signal import stop_event
from .member import ClusterMember, worker_member

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker's configuration, as its file has it."""

    config: BrokerConfig
    socket: Path
    worker: int
    workers: int
    log_level: str


def main() -> int:
    """Run the worker that the file describes."""
    # The supervisor has written the file into a folder that only its user can use.
    spec: WorkerSpec = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301
    logging.basicConfig(
        level=spec.log_level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s worker {spec.worker} %(levelname)s %(name)s: %(message)s",
    )
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(spec))
    except (BrokerError, CoordinationError, LedgerError, OSError) as error:
        log.error("%s", error)  # what a broker alone says: a port in use, a locked folder
        return 1
    return 0


async def _serve(spec: WorkerSpec) -> None:
    stop = stop_event()
    member = worker_member(spec.socket, spec.worker, spec.workers)
    async with Broker(spec.config, member) as broker, Collector(lambda: broker.services.is_idle):
        watch = member.session.listen(lambda state: _ended(state, stop))
        _announce(broker, member)
        await stop.wait()
        watch.close()


def _ended(state: State, stop: asyncio.Event) -> None:
    if state is State.LOST:
        log.error("the session with the supervisor has ended, so this worker ends too")
        stop.set()


def _announce(broker: Broker, member: ClusterMember) -> None:
    facts = {
        "worker": member.placement.worker,
        "pid": os.getpid(),
        **{url: getattr(broker, url) or None for url in (PORTS | TLS_PORTS).values()},
        "data_dir": str(broker.config.data_dir),
    }
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
