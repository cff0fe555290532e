"""`pulsemark completion`: the scripts, run by real shells where these are installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pulsemark.cli import COMMANDS, full_parser
from tests.support.word_tree import word_tree

BASH = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_shtab_pulsemark
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The three scripts, as files."""
    folder: Path = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "pulsemark", "completion", shell]
        made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        (folder / shell).write_text(made.stdout)
    return folder


@pytest.fixture(params=["bash", "fish"])
def complete(request, scripts, tmp_path):
    """What a shell proposes for these words, the last of which is being typed."""
    shell = request.param
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "broker.conf").touch()

    def proposed(*words: str) -> set[str]:
        command = {
            "bash": [program, "-c", BASH, "bash", scripts / "bash", *words],
            "fish": [program, "-c", f"source {scripts / 'fish'}; complete -C '{' '.join(words)}'"],
        }[shell]
        ran = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
        )
        assert ran.stderr == ""
        return {line.split("\t")[0] for line in ran.stdout.splitlines()} - {""}

    return proposed


def test_commands(complete):
    """The commands, and those that begin as what is typed."""
    assert complete("pulsemark", "") >= set(COMMANDS)
    assert complete("pulsemark", "sta") == {"standalone", "stats"}


def test_actions_and_options(complete):
    """Each place has its own: values of options before it lead nowhere."""
    assert complete("pulsemark", "topics", "") == {"list", "create", "show", "delete"}
    found = complete("pulsemark", "topics", "create", "--pa")
    assert found == {"--partitions"}
    words = ("pulsemark", "topics", "create", "--admin-url", "delete", "--")
    assert {"--partitions", "--json"} <= complete(*words)
    assert "--force" not in complete(*words)


def test_values(complete):
    """Choices of options and arguments, and files where a file is wanted."""
    assert complete("pulsemark", "completion", "") == {"bash", "zsh", "fish"}
    assert complete("pulsemark", "standalone", "--log-format", "") == {"text", "json"}
    assert "broker.conf" in complete("pulsemark", "config", "check", "")
    assert "broker.conf" in complete("pulsemark", "standalone", "--config", "")


def test_every_option_is_in_every_script(scripts):
    """What the parsers have, the scripts have."""
    for words in word_tree(full_parser()):
        for option in words.options:
            for name in option.names:
                assert name in (scripts / "bash").read_text()
                assert name.lstrip("-") in (scripts / "fish").read_text()
                assert name in (scripts / "zsh").read_text()
