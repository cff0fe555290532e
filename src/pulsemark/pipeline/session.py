"""A Spark session on this machine alone, with the settings that matter here.

- ``PYSPARK_PYTHON``: workers must be this very Python, or they take ``python3`` of ``PATH``.
- ``spark.driver.host`` next to ``bindAddress``: with only one of them results beyond 1 MiB are
  lost where the host's name leads elsewhere.
- Unix domain sockets and a 4 MiB buffer between JVM and workers: a fifth to a quarter more rows.
- The session's time zone is UTC: times are the broker's, not the reader's.
- As many shuffle partitions as cores: Spark's 200 cost more than the work at this size.
- Only errors are logged, from the JVM's first line on.

On a cluster none of this is needed: build the session as its operators say and hand it to
:func:`~pulsemark.pipeline.register`.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .java import find_java
from .registration import register, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUFFER_SIZE_BYTES = 4 << 20

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
    """Start a local session (7-15 s), or hand back the one that runs in this process.

    Sets ``JAVA_HOME`` and ``PYSPARK_PYTHON`` in this process's environment, where Spark looks
    for them; the sources ``pulsar-ledger`` and ``pulsemark`` are registered.

    Args:
        app_name: the application's name in Spark.
        cores: tasks that run at once; all of the machine's by default.
        conf: further Spark settings; they win over the ones chosen here.

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
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # PySpark logs every error that it also raises, as a page of JSON.
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
    """The JVM's logging settings, in a file for as long as this process lives."""
    descriptor, name = tempfile.mkstemp(prefix="pulsemark-log4j2-", suffix=".properties")
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    with os.fdopen(descriptor, "w") as file:
        file.write(_LOG4J_SETTINGS)
    return path
