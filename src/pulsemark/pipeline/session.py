"""A Spark session on only this machine, with the settings that matter here.

- ``PYSPARK_PYTHON``: workers must use the same Python; otherwise they use ``python3`` on ``PATH``.
  On this machine they also import pyspark as it is installed (`worker_python`).
- ``spark.driver.host`` and ``bindAddress``: if only one of them is set and the host's name belongs
  to another address, results larger than 1 MiB are lost.
- Unix domain sockets and a 4 MiB buffer between JVM and workers: 20 to 25% more rows per second.
- The session's time zone is UTC, so times do not depend on the reader's machine.
- As many shuffle partitions as cores: Spark's default of 200 costs more than the work itself here.
- Only errors are logged, from the start of the JVM on.
- A small compiler for the JVM that only makes Spark's command line.

On a cluster this module is not needed: build the session as the cluster's operators say and pass it
to :func:`~pulsemark.pipeline.register`.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .java import find_java
from .registration import register, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUFFER_SIZE_BYTES = 4 << 20

BRIEF_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options for work of seconds: code is compiled quickly rather than well."""
BRIEF_SETTINGS = {
    "spark.driver.defaultJavaOptions": BRIEF_JVM,
    "spark.sql.codegen.wholeStage": "false",
}
"""``conf`` of a session for little data and short queries, such as demos and tests. It saves the
work to compile what then runs for an instant; on much data it is slower."""

_LOG4J_SETTINGS = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def local_session(
    app_name: str = "pulsemark",
    *,
    cores: int | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a local session (7-15 s), or return the one that runs in this process.

    It sets ``JAVA_HOME`` and ``PYSPARK_PYTHON`` in this process's environment, where Spark looks
    for them, and registers the sources ``pulsar-ledger`` and ``pulsemark``.

    Args:
        app_name: the application's name in Spark.
        cores: tasks that run at once; all of the machine's by default.
        conf: additional Spark settings; they override the settings of this module.

    Raises:
        MissingExtraError: pyspark or pyarrow is not installed.
        JavaNotFoundError: there is no Java 17 or newer.
    """
    require_spark()
    from pyspark.sql import SparkSession

    cores = cores or os.cpu_count() or 1
    spark = SparkSession.getActiveSession()
    if spark is None:
        os.environ["JAVA_HOME"] = str(find_java().home)
        here = (conf or {}).get("spark.master", "local").startswith("local")
        os.environ["PYSPARK_PYTHON"] = worker_python() if here else sys.executable
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", BRIEF_JVM)
        # PySpark logs a page of JSON for every error that it also raises.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
        for key, value in {**_settings(cores), **(conf or {})}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
    register(spark)
    return spark


def _settings(cores: int) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log4j_file()}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.buffer.size": str(BUFFER_SIZE_BYTES),
    }


def _log4j_file() -> Path:
    """The JVM's logging settings, in a file that exists until this process ends."""
    descriptor, name = tempfile.mkstemp(prefix="pulsemark-log4j2-", suffix=".properties")
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    with os.fdopen(descriptor, "w") as file:
        file.write(_LOG4J_SETTINGS)
    return path


_SCRIPT = """\
#!/bin/sh
PYTHONPATH="${{PYTHONPATH#*/pyspark.zip:}}"
case "$PYTHONPATH" in */py4j-*-src.zip:*) PYTHONPATH="${{PYTHONPATH#*-src.zip:}}";; esac
export PYTHONPATH
exec {python} "$@"
"""


@cache
def worker_python() -> str:
    """A script that starts this Python for Spark's workers, without pyspark's archive of sources.

    Spark puts `pyspark.zip` first on the path of each Python that it starts. A module out of an
    archive of sources is compiled anew each time: 0.8 s of processor time for each process, and a
    session has half a dozen of them. The installed package is compiled already. So the script takes
    the archive off the path and becomes this Python. It exists until this process ends.

    This Python itself, if the machine has no shell or runs no program in its temporary folder.
    """
    if not os.access("/bin/sh", os.X_OK):
        return sys.executable
    descriptor, name = tempfile.mkstemp(prefix="pulsemark-python-")
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    with os.fdopen(descriptor, "w") as file:
        file.write(_SCRIPT.format(python=shlex.quote(sys.executable)))
    path.chmod(0o700)
    return name if os.access(name, os.X_OK) else sys.executable
