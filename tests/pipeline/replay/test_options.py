"""The user's function: found by its name, and sent to workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.replay.options import load_function, name_of, packed

MODULE = """
SUFFIX = "!"
def loud(message):
    return message.replaced(value=message.value + SUFFIX.encode())
class Maps:
    @staticmethod
    def it(message):
        return message
number = 5
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not of the form"),
        ("module", "is not of the form"),
        (":f", "is not of the form"),
        ("no_such_module_x:f", "ModuleNotFoundError"),
        ("json:no_such", "AttributeError"),
        ("json:__name__", "is a str, which cannot be called"),
        ("..:f", "cannot be loaded"),
    ],
)
def test_what_is_no_function_is_refused(text: str, reason: str) -> None:
    """The error has the text and the reason."""
    with pytest.raises(OptionError, match=reason) as failed:
        load_function(text)
    assert failed.value.option == "function"
    assert failed.value.value == text


def test_a_worker_without_the_module_has_the_function(tmp_path: Path) -> None:
    """A file in the driver's folder works in a process that does not see it."""
    (tmp_path / "mymaps.py").write_text(MODULE)
    pack = (
        "from pulsemark.pipeline.replay.options import *\n"
        "from pulsemark.pipeline.replay.options import load_function, name_of, packed\n"
        "f = load_function('mymaps:loud'); print(name_of(f)); print(packed(f))\n"
        "print(name_of(load_function('mymaps:Maps.it')))\n"
    )
    use = (
        "import sys\n"
        "from pulsemark.pipeline.replay.options import ReplayMessage, unpacked\n"
        "print(unpacked(sys.argv[1])(ReplayMessage('t', 0, b'hello')).value.decode())\n"
    )
    lines = output(tmp_path, pack).split()
    assert lines[0] == "mymaps:loud"
    assert lines[2] == "mymaps:Maps.it"
    assert output(Path("/"), use, lines[1]) == "hello!\n"


def output(folder: Path, *arguments: str) -> str:
    """What a Python program prints that runs in a folder."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_what_cannot_be_sent_is_refused() -> None:
    """A function over an open file or a lock works in no worker."""
    import threading

    lock = threading.Lock()
    with pytest.raises(OptionError, match="cannot be sent to workers: TypeError"):
        packed(lambda message: (lock, message)[1])
    assert name_of(len) == "builtins:len"  # type: ignore[arg-type]
