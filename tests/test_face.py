"""The package's face: every name is there, none costs anything before it is used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import pulsemark


@pytest.mark.parametrize("name", pulsemark.__all__)
def test_every_name_is_handed_on(name: str) -> None:
    """Each name of `__all__` is the same object as in the package that it comes from."""
    value = getattr(pulsemark, name)
    assert name in dir(pulsemark)
    if name != "__version__":
        package = importlib.import_module(f"pulsemark.{pulsemark._PACKAGE_OF[name]}")
        assert value is getattr(package, name)
        assert name in package.__all__


def test_unknown_names_are_no_attributes() -> None:
    """A name that does not exist is refused as Python refuses it."""
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = pulsemark.frobnicate


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import pulsemark", {"google.protobuf", "asyncio", "sqlite3", "grpc", "uvloop"}),
        ("from pulsemark import FolderReader, Finder", {"grpc", "uvloop", "h11", "pyspark"}),
        ("from pulsemark import Broker", {"grpc", "pyspark", "pytest", "matplotlib"}),
        ("from pulsemark import SeekClient", {"uvloop", "h11", "pyspark"}),
        ("import pulsemark.testing.plugin", {"grpc", "uvloop", "google.protobuf", "sqlite3"}),
        ("import pulsemark.pipeline", {"pyspark", "pyarrow", "numpy", "grpc"}),
    ],
)
def test_imports_are_paid_for_by_use(statement: str, unwanted: set[str]) -> None:
    """What a program does not use, it does not import."""
    code = f"{statement}\nimport sys; print(sorted({unwanted!r} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
