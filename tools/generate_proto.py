"""Generate the Python code of every .proto file in src/pulsemark/proto.

    python tools/generate_proto.py [TARGET]

TARGET (default: src) is the folder that receives `pulsemark/proto/*_pb2.py` and `*_pb2.pyi`.
protoc runs with paths below `src`, so that generated imports read `from pulsemark.proto import
...`. No gRPC code is generated: it would refuse every grpcio older than its generator, and
`pulsemark.finder.rpc` takes a service's calls from its descriptor.

The generator's version is fixed for two reasons: generated code needs a protobuf runtime that is
not older than its generator, so a newer generator would exclude some users; and the committed files
must be the same on every machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import keyword
import re
import sys
from pathlib import Path

from grpc_tools import protoc

GENERATOR_VERSION = "1.76.0"
SOURCE = Path(__file__).resolve().parent.parent / "src"


class GenerationError(Exception):
    """protoc refused a file, or the wrong generator is installed."""


def proto_files(source: Path = SOURCE) -> list[Path]:
    """The .proto files below `source`, sorted."""
    return sorted((source / "pulsemark" / "proto").glob("*.proto"))


def generate(target: Path, source: Path = SOURCE) -> list[Path]:
    """Write the generated files below `target` and return their paths, sorted.

    Raises GenerationError if another generator version is installed or protoc fails.
    """
    installed = importlib.metadata.version("grpcio-tools")
    if installed != GENERATOR_VERSION:
        raise GenerationError(f"grpcio-tools {GENERATOR_VERSION} needed, {installed} installed")
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    before = ["protoc", f"-I{source}", f"-I{well_known}"]
    produced: list[Path] = []
    for path in proto_files(source):
        outputs = [f"--python_out={target}", f"--pyi_out={target}"]
        if protoc.main([*before, *outputs, str(path)]) != 0:
            raise GenerationError(f"protoc failed on {path.name}")
        stem = target / path.relative_to(source).with_suffix("")
        module, stub = (stem.with_name(f"{stem.name}_pb2{end}") for end in (".py", ".pyi"))
        stub.write_text(correct_stub(stub.read_text(encoding="utf-8")), encoding="utf-8")
        produced += [module, stub]
    return sorted(produced)


def correct_stub(text: str) -> str:
    """A generated stub, with protoc's mistakes corrected.

    - Names that are Python keywords are syntax errors (Pulsar has a schema type called None);
      code reaches them as Schema.Type.Value("None").
    - A message's name inside a class that has an enum value of the same name means that value
      (Schema.KeyValue); an alias from outside the class means the message.
    - The type it gives to a message's extensions does not exist; the base class has them typed.
    - Mapping without arguments is refused by strict type checkers.
    """
    # A message has `Extensions` from its base class; the generated line uses a missing type.
    lines = [line for line in text.splitlines() if "_python_message" not in line]
    kept = [line for line in lines if not keyword.iskeyword(line.partition(":")[0].strip())]
    classes = {m[1] for line in kept if (m := re.match(r"class (\w+)\(", line))}
    fields = {m[1] for line in kept if (m := re.match(r"    (\w+): ", line))}
    shadowed = sorted(classes & fields)
    for name in shadowed:
        kept = [re.sub(rf"(?<=\[){name}(?=[\],])", f"_{name}", line) for line in kept]
        kept.append(f"_{name}: _TypeAlias = {name}")
    kept = [re.sub(r"\b_Mapping\]", "_Mapping[str, object]]", line) for line in kept]
    if shadowed:
        kept.insert(0, "from typing import TypeAlias as _TypeAlias")
    return "\n".join(kept) + "\n"


def main(arguments: list[str]) -> int:
    """Command line: one optional argument, the target folder."""
    target = Path(arguments[0]) if arguments else SOURCE
    for path in generate(target):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
