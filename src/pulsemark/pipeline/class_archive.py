"""A shared archive of Spark's classes, which makes the start of a session cheaper.

Much of a session's start is the JVM's loading and checking of Spark's classes. The JVM can write
what it has loaded into an archive and map that the next time (class data sharing). An archive fits
one Java and one Spark only, so its name has both. If it does not fit after all, the JVM goes on
without it.

`make_archive` makes it, once for each user, in the cache folder. `local_session` uses it if it is
there.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .java import find_java

_WARM_UP = """
import sys, tempfile
from pathlib import Path
from pulsemark.ledger import LocalStore
from pulsemark.pipeline import local_session
from pulsemark.testing.raw_messages import unbatched_message

with tempfile.TemporaryDirectory() as name:
    folder = Path(name) / "data"
    with LocalStore.open(folder) as store:
        topic = store.open_topic("persistent://public/default/a")
        topic.append(unbatched_message(b"x", publish_time_ms=1)).commit.wait(60)
    spark = local_session("class archive", cores=1, conf={
        "spark.driver.defaultJavaOptions": "-Xlog:disable -XX:ArchiveClassesAtExit=" + sys.argv[1],
        "spark.sql.warehouse.dir": name,
    })
    frame = spark.read.format("pulsar-ledger").option("topic", "a").load(str(folder))
    frame.groupBy("__topic").count().orderBy("count").collect()
    frame.write.parquet(name + "/parquet")
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    jvm.stdin.close()  # the JVM ends, and writes the archive before that
    jvm.wait()
"""


def archive_path() -> Path:
    """Where the archive of this Java and this Spark is, or would be.

    Raises:
        JavaNotFoundError: there is no Java 17 or newer.
    """
    import pyspark

    home = find_java().home
    release = home / "release"
    known = release.read_bytes() if release.is_file() else b""
    parts = [str(home).encode(), known, str(Path(pyspark.__file__).parent).encode()]
    mark = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "pulsemark" / f"spark-{pyspark.__version__}-{mark}.jsa"


def archive_options() -> list[str]:
    """The JVM's options to use the archive; none if there is no archive."""
    path = archive_path()
    if not path.is_file() or any(letter.isspace() for letter in str(path)):
        return []
    # Without its log, since the JVM would print a line on standard output if it does not fit.
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:disable"]


def make_archive(run: Callable[[Sequence[str]], object] | None = None) -> Path:
    """Make a new archive, in a Python process of its own, and return its path.

    Raises:
        JavaNotFoundError: there is no Java 17 or newer.
        OSError: the cache folder cannot be written, or the JVM has not made an archive.
        subprocess.CalledProcessError: Spark could not be started.
    """
    path = archive_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{os.getpid()}")
    path.unlink(missing_ok=True)  # a JVM that uses an archive cannot make one
    try:
        (run or _run)([sys.executable, "-c", _WARM_UP, str(made)])
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    return path


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)
