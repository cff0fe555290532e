"""The files of a replay's checkpoint: what is damaged is never taken for progress."""

from __future__ import annotations

import json
from pathlib import Path

from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.marks import Mark
from pulsemark.pipeline.replay.checkpoint import Checkpoint, Part, Progress, ReplayPlan

PART = Part("persistent://a/b/c", "persistent://a/b/d", 7, 10, 90, Mark(1, 2, 3, "0123"))
PROGRESS = Progress(41, 31, 9, 4000, True, None, (5, 6), True)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    """In the plan and in the progress: else messages would be left out, or doubled."""
    checkpoint = Checkpoint(tmp_path)
    plan = ReplayPlan.new({"path": "/x", "topics": None}, (PART,))
    checkpoint.begin(plan)
    checkpoint.save(0, PROGRESS)
    for name in ("plan.json", "progress-0.json"):
        data = (tmp_path / name).read_bytes()
        for place in range(len(data)):
            for bit in (0, 3, 5):
                hurt = bytearray(data)
                hurt[place] ^= 1 << bit
                (tmp_path / name).write_bytes(hurt)
                try:
                    found = checkpoint.load(), checkpoint.progress(0, PART)
                except OptionError as error:
                    assert name in str(error)
                else:
                    assert found == (plan, PROGRESS), (place, bit)
        (tmp_path / name).write_bytes(data)


def test_files_of_version_1_are_read(tmp_path: Path) -> None:
    """They have no checksums."""
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(0, PROGRESS)
    content = json.loads((tmp_path / "progress-0.json").read_text())
    del content["crc32c"]
    (tmp_path / "progress-0.json").write_text(json.dumps({**content, "version": 1}))
    assert checkpoint.progress(0, PART) == PROGRESS
