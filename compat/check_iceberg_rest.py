"""Offload to an Iceberg table through a REST catalog: Iceberg's own server, run for real.

    python compat/check_iceberg_rest.py

The server is the one of Iceberg's own tests (`RESTCatalogServer`), from Maven Central; it needs
Java, and Maven the first time. Runs append, merge, grow and keep up tables as a user would, two
runs change one table at a time, and all is read with pyiceberg through the same catalog.
Exit code 1 if something is wrong, 2 without Java or the jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from socket import create_server
from urllib.request import urlopen

from pulsemark.ledger import LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.pipeline import IcebergTarget, Upkeep, local_session, offload, verify_offload
from pulsemark.pipeline.errors import TableChangedError
from pulsemark.testing.raw_messages import unbatched_message

sys.path.insert(0, str(Path(__file__).parent))
from kafka_clients.sources import CACHE, MissingError, fetched, program

HERE = Path(__file__).parent / "iceberg_rest"


def jars() -> str:
    """The class path of the server. Raises MissingError."""
    home = CACHE / "iceberg-rest"
    if not (home / "lib").is_dir():
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text((HERE / "pom.xml").read_text())
        new = home / "new"
        copying = [program("mvn"), "-q", "dependency:copy-dependencies"]
        fetched([*copying, f"-DoutputDirectory={new}"], home)
        new.rename(home / "lib")
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    of_spark = sorted((Path(spark.origin).parent / "jars").glob("*hadoop-client-*.jar"))
    of_spark += sorted((Path(spark.origin).parent / "jars").glob("commons-logging*.jar"))
    return os.pathsep.join([f"{home / 'lib'}/*", *map(str, of_spark)])


@contextmanager
def catalog(class_path: str, warehouse: Path) -> Iterator[str]:
    """A catalog in memory; yields its URL."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    settings = {
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.inmemory.InMemoryCatalog",
        "CATALOG_WAREHOUSE": warehouse.as_uri(),
        "CATALOG_REST_PORT": str(port),
    }
    command = ["java", "-cp", class_path, "org.apache.iceberg.rest.RESTCatalogServer"]
    with (warehouse.parent / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
        try:
            for _ in range(300):
                with suppress(OSError), urlopen(f"{url}/v1/config", timeout=10):
                    break
                time.sleep(0.2)
            yield url
        finally:
            server.terminate()
            server.wait()


def filled(data: Path, count: int) -> None:
    """More messages of five keys in one topic."""
    with LocalStore.open(data) as store:
        topic = store.open_topic("persistent://public/default/a")
        topic.stampers = StamperChain.from_names(["broker-time", "index"])
        for number in range(count):
            body = unbatched_message(b"%d" % number, publish_time_ms=1, key=f"k{number % 5}")
            topic.append(body).commit.wait(30)


def main() -> int:
    """Run it."""
    try:
        class_path = jars()
    except MissingError as reason:
        print(reason)
        return 2
    spark = local_session("iceberg-rest", cores=2)
    with tempfile.TemporaryDirectory() as folder:
        data, warehouse = Path(folder, "data"), Path(folder, "warehouse")
        warehouse.mkdir()
        with catalog(class_path, warehouse) as url:
            properties = {"type": "rest", "uri": url}
            appended = IcebergTarget("lake.appended", "rest", properties)
            latest = IcebergTarget("lake.latest", "rest", properties)
            found = []
            for _ in range(2):
                filled(data, 50)
                stale = IcebergTarget("lake.appended", "rest", properties)
                loaded = stale.load()
                offload(spark, data, appended)
                offload(spark, data, latest, write_mode="upsert", upkeep=Upkeep(compact_files=True))
                found += [check.good for check in verify_offload(data, appended)]
                found += [check.good for check in verify_offload(data, latest)]
                if loaded.head is not None:
                    try:
                        stale.commit(replace(loaded, files=()))
                        found.append(False)
                    except TableChangedError:
                        found.append(True)
            rows = appended.catalog.load_table("lake.appended").scan().to_arrow()
            found.append(sorted(rows["__index"].to_pylist()) == list(range(100)))
            keys = latest.catalog.load_table("lake.latest").scan().to_arrow()
            values = sorted(int(value) for value in keys["value"].to_pylist())
            found.append(values == [45, 46, 47, 48, 49])
    spark.stop()
    print(f"{sum(found)} of {len(found)} checks of tables in a REST catalog passed")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
