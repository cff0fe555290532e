"""Gets clients from their registries into a cache outside of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(
    os.environ.get("PULSEMARK_KAFKA_CLIENTS", Path.home() / ".cache" / "pulsemark-kafka-clients")
)
_POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    "<groupId>x</groupId><artifactId>x</artifactId><version>1</version>"
    "<dependencies>{}</dependencies></project>"
)
_DEPENDENCY = (
    "<dependency><groupId>org.apache.kafka</groupId><artifactId>{}</artifactId>"
    "<version>{}</version></dependency>"
)
FETCH_S = 600


class MissingError(Exception):
    """A client is not on this machine and cannot be fetched; the text says why."""


def program(name: str) -> str:
    """The path of a program. Raises MissingError."""
    found = shutil.which(name)
    if found is None:
        raise MissingError(f"{name} is not installed")
    return found


def fetched(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    """Run a registry's client. Raises MissingError with its last line."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_S,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
        raise MissingError(f"{command[0]} failed: {lines[-1][:200]}")


def jars(version: str, *, streams: bool = False) -> str:
    """The class path of a Kafka with its tools, or of Kafka Streams. Raises MissingError."""
    program("java")
    home = CACHE / f"{'streams' if streams else 'kafka'}-{version}"
    if not (home / "lib").is_dir():
        maven = program("mvn")
        home.mkdir(parents=True, exist_ok=True)
        scala = "2.11" if version < "2" else "2.13"
        names = [f"kafka_{scala}"] + ([] if version.startswith("0.8") else ["kafka-tools"])
        if streams:
            names = ["kafka-streams"]
        wanted = "".join(_DEPENDENCY.format(name, version) for name in names)
        (home / "pom.xml").write_text(_POM.format(wanted))
        new = home / "new"
        fetched([maven, "-q", "dependency:copy-dependencies", f"-DoutputDirectory={new}"], home)
        new.rename(home / "lib")
    return f"{home / 'lib'}/*"


def go_client() -> Path:
    """The program of `go/`, built. Raises MissingError."""
    go = program("go")
    folder = CACHE / "go"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("main.go", "go.mod", "go.sum"):
        shutil.copy(HERE / "go" / name, folder / name)
    fetched([go, "build", "-o", "clients", "."], folder, {"GOFLAGS": "-buildvcs=false"})
    return folder / "clients"


def node_client() -> tuple[str, Path]:
    """node, and the program of `node/` beside its library. Raises MissingError."""
    node, npm = program("node"), program("npm")
    folder = CACHE / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("round.js", "package.json"):
        shutil.copy(HERE / "node" / name, folder / name)
    if not (folder / "node_modules").is_dir():
        fetched([npm, "install", "--no-audit", "--no-fund", "--silent"], folder)
    return node, folder / "round.js"
