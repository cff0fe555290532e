"""Attacks on brokers with Apache BookKeeper under load: what was acknowledged has to stay.

    python campaigns/cluster_attacks.py [--only NAME ...] [--seconds-each 10] [--brokers 2]
        [--seed 1] [--logs FOLDER]

Starts ZooKeeper, three bookies on small disks of their own (as root; else the attacks on disks are
left out) and brokers with small ledgers. All the time Apache Pulsar's Python client publishes to
some topics, topics are created and deleted over REST, and raw clients send random commands and
vanish. Meanwhile one attack after another happens. After each of them every topic has to take
messages again within 10 s, counted from the moment at which enough bookies and ZooKeeper serve. At
the end

1. every acknowledged message is there, in order, and indexes have no gap (`failover_campaign`);
2. a topic whose creation was confirmed is there and takes a message, one whose deletion was
   confirmed is gone; no topic is stuck.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pulsar
from bookkeeper_peer import ROOT, BookKeeperPeer
from cluster_bystanders import BACK_LIMIT_S, NAMESPACE, Churn, Vanishing, rest
from failover_campaign import BrokerProcess, Load, check_all, on_bookies, owners_of, parser_of

from pulsemark.client import Service
from pulsemark.coordination import connect
from pulsemark.proto import pulsar_api_pb2 as pb

GIVEN_UP_S = 90.0
WRITABLE_LIMIT_S = 90.0
DISK_MIB = 160


class Scene:
    """What is attacked."""

    def __init__(
        self, peer: BookKeeperPeer, brokers: list[BrokerProcess], seconds: float, seed: int
    ) -> None:
        self.peer, self.brokers, self.seconds = peer, brokers, seconds
        self.random = random.Random(seed)
        self.topics: list[str] = []

    def owner(self) -> BrokerProcess:
        """A broker that has topics."""
        owners = set(owners_of(self.brokers, self.topics).values())
        return self.random.choice([one for one in self.brokers if one.url in owners])


def unload(scene: Scene) -> None:
    """Bundles and whole namespaces are given away while topics are created in them."""
    bundles = [f"0x{n << 30:08x}_0x{min((n + 1) << 30, 0xFFFFFFFF):08x}" for n in range(4)]
    until = time.monotonic() + scene.seconds
    while time.monotonic() < until:
        path = scene.random.choice([*(f"/{bundle}" for bundle in bundles), ""])
        with suppress(OSError):
            broker = scene.random.choice(scene.brokers)
            rest(broker, "PUT", f"/admin/v2/namespaces/{NAMESPACE}{path}/unload")
        time.sleep(scene.random.uniform(0, 1.5))


def killed(scene: Scene) -> None:
    """A broker is killed, and started again."""
    broker = scene.owner()
    broker.signal(signal.SIGKILL)
    broker.ended()
    broker.start()


def ended(scene: Scene) -> None:
    """A broker ends in good order, and is started again."""
    broker = scene.owner()
    broker.signal(signal.SIGTERM)
    broker.ended()
    broker.start()


def session_lost(scene: Scene) -> None:
    """ZooKeeper does not answer for longer than sessions last, while a namespace is unloaded."""
    unloading = threading.Thread(target=unload, args=(scene,))
    unloading.start()
    time.sleep(scene.random.uniform(0.2, 1))
    scene.peer.pause("zookeeper")
    time.sleep(7)
    scene.peer.resume("zookeeper")
    unloading.join()


def zookeeper_killed(scene: Scene) -> None:
    """ZooKeeper is killed and started again."""
    scene.peer.kill("zookeeper")
    time.sleep(1)
    scene.peer.run("zookeeper")


def bookie_killed(scene: Scene) -> None:
    """A bookie is killed, and started again later."""
    name = scene.random.choice(scene.peer.bookies)
    scene.peer.kill(name)
    time.sleep(scene.seconds)
    scene.peer.run(name)


def disk_full(scene: Scene) -> None:
    """A bookie's disk is full for a while."""
    _fill(scene, [scene.random.choice(scene.peer.bookies)])


def disks_full(scene: Scene) -> None:
    """The disks of all bookies are full for a while."""
    _fill(scene, scene.peer.bookies)


def _fill(scene: Scene, names: list[str]) -> None:
    for name in names:
        filler = (scene.peer.folder / name / "filler").open("wb", buffering=0)
        with filler as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
    time.sleep(scene.seconds)
    for name in names:
        (scene.peer.folder / name / "filler").unlink()
    asyncio.run(_writable(scene.peer))


async def _writable(peer: BookKeeperPeer) -> None:
    """Return when all bookies take writes: they look every 10 s whether their disks have room.

    One that started while its disk was full may stay half started; it is killed after a while.
    """
    session = await connect(peer.zookeeper)
    began_s = time.monotonic()
    try:
        while True:
            there = await session.children(f"{ROOT}/available")
            missing = [name for name in peer.bookies if peer.address(name) not in there]
            if not missing:
                return
            if time.monotonic() - began_s > WRITABLE_LIMIT_S:
                began_s = time.monotonic()
                for name in missing:
                    peer.kill(name)
            _start_ended(peer)
            await asyncio.sleep(0.1)
    finally:
        await session.close()


def _start_ended(peer: BookKeeperPeer) -> None:
    """A full disk ends a bookie, at once or a while later."""
    for name in peer.bookies:
        if not peer.is_running(name):
            print(f"  {name} has ended, and is started again", flush=True)
            peer.run(name)


ATTACKS: dict[str, Callable[[Scene], None]] = {
    each.__name__: each
    for each in (
        unload,
        killed,
        ended,
        bookie_killed,
        zookeeper_killed,
        session_lost,
        disk_full,
        disks_full,
    )
}
WITH_QUORUM = ("unload", "killed", "ended", "bookie_killed", "disk_full")
"""Attacks that leave ZooKeeper and a quorum: the pause counts from their begin."""


def attacked(scene: Scene, name: str, loads: list[Load]) -> dict[str, Any]:
    """One attack; how long the topics took no messages."""
    asyncio.run(_writable(scene.peer))
    began_s = time.monotonic()
    ATTACKS[name](scene)
    over_s = time.monotonic()
    since_s = began_s if name in WITH_QUORUM else over_s
    gaps: dict[str, float] = {}
    while len(gaps) < len(loads) and time.monotonic() - over_s < GIVEN_UP_S:
        time.sleep(0.1)
        for load in loads:
            gap_s = load.gap_s(since_s, over_s)
            if gap_s is not None:
                gaps.setdefault(load.topic, gap_s)
    missing = [load.topic for load in loads if load.topic not in gaps]
    longest_s = round(max(gaps.values(), default=GIVEN_UP_S), 2)
    return {"attack": name, "longest_s": longest_s, "missing": missing}


def campaign(arguments: argparse.Namespace, peer: BookKeeperPeer, folder: Path) -> dict[str, Any]:
    """The whole run."""
    settings = folder / "broker.conf"
    settings.write_text("managedLedgerMaxEntriesPerLedger=100\n")
    options = ("--config", str(settings))
    brokers = [
        BrokerProcess(number, peer.store, folder, *options) for number in range(arguments.brokers)
    ]
    with ExitStack() as at_end:
        for one in brokers:
            one.start()
            at_end.callback(one.kill)
        url = "pulsar://" + ",".join(one.url.removeprefix("pulsar://") for one in brokers)
        logger = logging.getLogger("pulsar")
        logger.setLevel(logging.CRITICAL)
        client = pulsar.Client(url, logger=logger, operation_timeout_seconds=60)
        at_end.callback(client.close)
        scene = Scene(peer, brokers, arguments.seconds_each, arguments.seed)
        scene.topics = [f"persistent://{NAMESPACE}/t-{n}" for n in range(arguments.topics)]
        loads = [Load(client, name) for name in scene.topics]
        churn = Churn(brokers, arguments.seed)
        vanishing = Vanishing(brokers, arguments.seed)
        events = []
        try:
            for _ in range(arguments.rounds):
                for name in arguments.only:
                    time.sleep(2)
                    events.append(attacked(scene, name, loads))
                    print(json.dumps(events[-1]), flush=True)
        finally:
            vanishing.stop()
            churn.stop()
            for load in loads:
                load.stop()
        stuck = churn.problems(client)
        flags = pb.FeatureFlags(supports_broker_entry_metadata=True)
        service = Service(url, feature_flags=flags)
        result = check_all(service, brokers[0], loads)
        service.close()
    slow = [one for one in events if one["longest_s"] > BACK_LIMIT_S or one["missing"]]
    counts = {"vanished": vanishing.count, "churn": churn.answers}
    return {**counts, **result, "slow": slow, "stuck": stuck}


def _mount(folder: Path) -> bool:
    """A small disk of its own for a bookie, if this user may mount one."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def main() -> int:
    """Run it; 0 if nothing is wrong."""
    parser = parser_of(__doc__, brokers=2)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds-each", type=float, default=10)
    parser.add_argument("--topics", type=int, default=6)
    arguments = parser.parse_args()
    with on_bookies(arguments.logs) as (folder, peer), ExitStack() as at_end:
        disks = [peer.folder / f"bookie-{number}" for number in range(3)]
        at_end.callback(_unmount, disks)
        mounted = [_mount(disk) for disk in disks]
        if not all(mounted):
            print("the attacks on disks are left out: mounting small disks needs root")
            arguments.only = [one for one in arguments.only if not one.startswith("disk")]
        at_end.callback(peer.stop)  # before the disks are gone
        peer.start(3)
        result = campaign(arguments, peer, folder)
    print(json.dumps(result, indent=1))
    return 1 if result["wrong"] or result["slow"] or result["stuck"] else 0


def _unmount(disks: list[Path]) -> None:
    for disk in disks:
        if os.path.ismount(disk):
            subprocess.run(["umount", str(disk)], check=True)


if __name__ == "__main__":
    sys.exit(main())
