"""The Python of README and docs is what a type checker takes: `mypy --strict`, in one run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(
    r"(<!-- not run[^\n]*-->\n)?^```(?:python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL
)
IMPORT = re.compile(r"^(?:import|from) .*$", re.MULTILINE)
FUNCTION = re.compile(r"^(?:async )?def (?!test_)\w+\(.*\) -> .*?:(?=  #|$)", re.MULTILINE)
#: Names that pages take for granted, and their types.
GIVEN = {
    "body": "bytes",
    "client": "pulsemark.finder.SeekClient",
    "consumer": "confluent_kafka.Consumer",
    "entry": "bytes",
    "folder": "str",
    "follower": "pulsemark.ManagedLedger",
    "frame": "pyspark.sql.DataFrame",
    "kafka": "",
    "ledger": "pulsemark.ManagedLedger",
    "position": "pulsemark.ledger.Position",
    "reader": "pyspark.sql.DataFrameReader",
    "spark": "pyspark.sql.SparkSession",
    "store": "pulsemark.LocalStore",
    "stream": "pyspark.sql.DataFrame",
    "token": "str",
}


def module_of(block: str, earlier: list[str]) -> str:
    """A block after the imports of the page's earlier ones, and what it takes for granted."""
    lines = ["from __future__ import annotations", *dict.fromkeys(earlier)]
    for name, kind in GIVEN.items():
        bound = rf"^ *(?:{name}(?: =|:)|def {name}\b|.*\b(?:import|as|for)\b.* {name}\b)"
        if not re.search(rf"\b{name}\b", block) or re.search(bound, block, re.MULTILINE):
            continue
        if "." in kind:
            lines.append(f"import {kind.rpartition('.')[0]}")
        lines.append(f"{name}: {kind}" if kind else f"import {name}")
    return "\n".join([*lines, block])


@pytest.mark.timeout(300)
def test_all_snippets_pass_a_strict_type_checker(tmp_path: Path) -> None:
    """No block of any page has an error of types; it may use functions of the blocks before it."""
    api = pytest.importorskip("mypy.api", reason="mypy is not installed (the extra `dev`)")
    files = []
    for page in PAGES:
        earlier: list[str] = []
        for number, (is_left_out, block) in enumerate(BLOCK.findall(page.read_text("utf-8"))):
            if is_left_out:
                continue
            files.append(tmp_path / f"{page.stem.replace('-', '_')}_{number}.py")
            files[-1].write_text(module_of(block, earlier), "utf-8")
            earlier += IMPORT.findall(block)
            earlier += [f"{line} raise NotImplementedError" for line in FUNCTION.findall(block)]
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml")]
    options += ["--cache-dir", str(ROOT / ".mypy_cache")]
    found, errors, code = api.run([*options, *map(str, files)])
    assert (code, errors) == (0, ""), found
    assert len(files) > 40
