"""Fixtures of all tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest


@pytest.fixture
def steps_of() -> Callable[[Callable[[], object]], int]:
    """How many bytecode instructions a call runs: a cost that does not depend on the machine."""

    def count(function: Callable[[], object]) -> int:
        steps = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal steps
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            steps += event == "opcode"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)
        return steps

    return count
