"""`pulsemark completion bash|zsh|fish`: print a script that completes commands and options.

    pulsemark completion bash > ~/.local/share/bash-completion/completions/pulsemark

The script is made from the parsers of all commands, and calls nothing while the user types.
"""

from __future__ import annotations

import argparse

from .completion_scripts import SHELLS
from .word_tree import word_tree

ERRORS: tuple[type[Exception], ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from . import full_parser

    print(SHELLS[args.shell](word_tree(full_parser())), end="")
    return 0
