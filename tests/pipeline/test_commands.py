"""The command's options: which table they name, and what is refused before any work."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import LocalStore
from pulsemark.option_table import add_options
from pulsemark.pipeline import DeltaTarget, IcebergTarget, run_job
from pulsemark.pipeline.arguments import TYPES
from pulsemark.pipeline.commands import OFFLOAD, table_from
from pulsemark.pipeline.errors import MissingExtraError
from pulsemark.pipeline.offload.table import ParquetFolder


def named(*arguments: str) -> Any:
    """The table that a command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", nargs="?")
    add_options(parser, OFFLOAD, TYPES)
    return table_from(parser.parse_args(arguments))


def test_each_format_has_its_table() -> None:
    """Parquet by default, Delta by folder, Iceberg by catalog and identifier."""
    assert isinstance(named("/out"), ParquetFolder)
    delta = named("/out", "--format", "delta", "--storage-option", "A=b=c")
    assert isinstance(delta, DeltaTarget)
    assert delta.storage_options == {"A": "b=c"}
    properties = ["--catalog-property", "uri=x", "--catalog-property", "warehouse=y"]
    iceberg = named("--format", "iceberg", "--table", "a.b", "--catalog", "c", *properties)
    assert isinstance(iceberg, IcebergTarget)
    assert iceberg.catalog_name == "c"
    assert iceberg.properties == {"uri": "x", "warehouse": "y"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "option target: is required"),
        (["--format", "delta"], "option target: is required"),
        (["--format", "iceberg"], "option --table: is required for --format iceberg"),
        (["/o", "--format", "iceberg", "--table", "a.b"], "option target = '/o': an Iceberg table"),
        (["/o", "--table", "a.b"], "option --table = 'a.b': is for --format iceberg only"),
        (["/o", "--catalog", "c"], "option --catalog = 'c': is for --format iceberg only"),
        (
            ["/o", "--storage-option", "a=b"],
            "--storage-option = \"['a=b']\": is for --format delta",
        ),
        (["--format", "iceberg", "--table", "ab"], "option --table = 'ab': is not of the form"),
        (
            ["--format", "iceberg", "--table", "a.b", "--catalog-property", "x"],
            "option --catalog-property = 'x': is not of the form KEY=VALUE",
        ),
        (
            ["/o", "--format", "delta", "--storage-option", "a=b", "--storage-option", "a=c"],
            "option --storage-option = 'a=c': a is given twice",
        ),
        (["/o", "--every", "9s"], "option --every = '9000': is for --follow"),
        (["/o", "--metrics-port", "1"], "option --metrics-port = '1': is for --follow"),
        (["/o", "--follow", "--verify"], "option --verify = 'True': is not for --follow"),
        (
            ["/o", "--follow", "--ending-time", "2026-03-01"],
            "--ending-time = '2026-03-01': is not for",
        ),
        (["nope://x"], "option target = 'nope://x': is not a place for files"),
        (["file://elsewhere/x"], "option target = 'file://elsewhere/x': names another host"),
        (["/o", "--format", "delta", "--columns", "value"], "a delta table needs __index"),
        (["/o", "--columns", "nope"], "option --columns = 'nope'"),
        (["/o", "--columns", "value,value"], "option --columns = 'value,value'"),
        (["s3://"], "option target = 's3://': names no bucket or folder"),
        (["DATA"], "option target = 'DATA': is inside the data folder DATA"),
        (["OTHER/x"], "OTHER/x': is inside the data folder OTHER"),
        (["DATA/x", "--format", "delta"], "DATA/x': is inside the data folder"),
        (["DATA/PULSEMARK/x"], "is inside the data folder"),
        ([__file__], "test_commands.py': is a file; name a folder"),
        ([f"{__file__}/x/y"], "test_commands.py; name a folder"),
    ],
)
def test_nonsense_is_refused_by_name(
    folder: Any, tmp_path: Path, arguments: list[str], message: str
) -> None:
    """Exit code 2 and one line that names the option, before a session is started."""
    folder.topic("a").single(b"x")
    err, data, other = io.StringIO(), str(folder.path), str(tmp_path / "other")
    LocalStore.open(other).close()
    arguments = [each.replace("DATA", data).replace("OTHER", other) for each in arguments]
    assert run_job("offload", ["--data-dir", data, *arguments], err=err) == 2
    assert message.replace("DATA", data).replace("OTHER", other) in err.getvalue()
    assert err.getvalue().count("\n") == 1


@pytest.mark.parametrize(("kind", "module"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_missing_extra_is_named(
    folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, module: str
) -> None:
    """Exit code 1 and the command that installs it."""
    folder.topic("a").single(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    target = ["--table", "a.b"] if kind == "iceberg" else [str(tmp_path / "out")]
    err = io.StringIO()
    assert (
        run_job("offload", ["--data-dir", str(folder.path), "--format", kind, *target], err=err)
        == 1
    )
    assert f"{module} is not installed: install the extra '{kind}'" in err.getvalue()
    assert f"pip install '/path/to/checkout[{kind}]'" in err.getvalue()
    assert issubclass(MissingExtraError, ImportError)
