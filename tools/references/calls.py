"""docs/grpc-reference.md: the seek service, from seek.proto."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["calls_page"]

PROTO = Path(__file__).resolve().parents[2] / "src" / "pulsemark" / "proto" / "seek.proto"

INTRODUCTION = """\
# gRPC calls

`pulsemark.seek.v1.SeekService`, made from `seek.proto` by `tools/write_references.py`; do not edit
it. How to use it is in [grpc.md](grpc.md).
"""


def calls_page() -> str:
    """The page."""
    head, _, body = PROTO.read_text(encoding="utf-8").partition("\nsyntax = ")
    rules = "\n".join(line.removeprefix("//").removeprefix(" ") for line in head.splitlines())
    parts = [INTRODUCTION, "\n## Rules\n\n```text\n", rules.strip(), "\n```\n", "\n## Calls\n\n"]
    parts.append("| call | request | answer | what it does |\n|---|---|---|---|\n")
    called = re.compile(
        r"((?:^  //.*\n)+)  rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\);", re.MULTILINE
    )
    for comment, name, request, stream, answer in called.findall(body):
        parts.append(
            f"| `{name}` | {_link(request)} | {'a stream of ' if stream else ''}{_link(answer)} "
            f"| {_words(comment)} |\n"
        )
    parts.append("\n## Messages\n")
    block = re.compile(
        r"((?:^//[^\n]*\n)*)^(message|enum) (\w+) (\{\n.*?^\}|\{\})", re.MULTILINE | re.DOTALL
    )
    for comment, kind, name, text in block.findall(body):
        parts.append(f"\n### {name}\n\n")
        if comment:
            parts.append(f"{_words(comment)}\n\n")
        parts.append(f"```protobuf\n{kind} {name} {text}\n```\n")
    return "".join(parts)


def _link(message: str) -> str:
    return f"[{message}](#{message.lower()})"


def _words(comment: str) -> str:
    """A comment's lines as one text."""
    lines = (line.strip().removeprefix("//").strip() for line in comment.splitlines())
    return " ".join(lines).strip()
