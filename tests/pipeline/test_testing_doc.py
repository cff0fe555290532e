"""The guide to tests of Spark's jobs: its example passes as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "testing-frameworks.md").read_text(encoding="utf-8")


def test_the_example_for_spark_passes(spark: Any, tmp_path: Path) -> None:
    """The job finds the messages that the test has published, in a session like the guide's."""
    section = GUIDE.partition("\n## Spark\n")[2]
    (block,) = re.findall(r"^```py\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "testing-frameworks.md", "exec"), names)
    names["test_paid_orders_are_counted"](spark, tmp_path)
