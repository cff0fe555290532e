"""The committed generated code, and the registry of entry tags."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pulsemark.proto
from pulsemark.proto import broker_entry_pb2, pulsar_api_pb2

PROTO = Path(pulsemark.proto.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
REGISTRY_LINE = re.compile(r"//  (\d+) +(\w+) ")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """tools/generate_proto.py as a module."""
    spec = importlib.util.spec_from_file_location(
        "generate_proto", ROOT / "tools" / "generate_proto.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_code_is_what_the_generator_makes(generator: ModuleType, tmp_path: Path) -> None:
    """Every generated file is committed, byte for byte, and no other is."""
    made = {path.name: path.read_bytes() for path in generator.generate(tmp_path)}
    committed = {
        path.name: path.read_bytes()
        for path in (ROOT / "src" / "pulsemark" / "proto").iterdir()
        if "_pb2" in path.name
    }

    assert sorted(made) == sorted(committed)
    assert [name for name in made if made[name] != committed[name]] == []


def test_generated_imports_name_the_package(generator: ModuleType) -> None:
    """Generated modules are found as pulsemark.proto only, never as top-level `proto`."""
    for path in generator.proto_files():
        stem = path.name.removesuffix(".proto")
        module = importlib.import_module(f"pulsemark.proto.{stem}_pb2")
        assert module.DESCRIPTOR.name == f"pulsemark/proto/{path.name}"


def test_stub_is_corrected(generator: ModuleType) -> None:
    """Keyword names go, shadowed names get an alias, bare Mappings get arguments.

    What it says of extensions goes, too.
    """
    text = (
        "from google.protobuf.internal import python_message as _python_message\n"
        "class Pair(_message.Message): ...\n"
        "class Kind(_message.Message):\n"
        "    Extensions: _python_message._ExtensionDict\n"
        "    None: Kind.Type\n"
        "    Pair: Kind.Type\n"
        "    pairs: Container[Pair]\n"
        "    def __init__(self, pairs: _Union[Pair, _Mapping]) -> None: ...\n"
    )

    assert generator.correct_stub(text) == (
        "from typing import TypeAlias as _TypeAlias\n"
        "class Pair(_message.Message): ...\n"
        "class Kind(_message.Message):\n"
        "    Pair: Kind.Type\n"
        "    pairs: Container[_Pair]\n"
        "    def __init__(self, pairs: _Union[_Pair, _Mapping[str, object]]) -> None: ...\n"
        "_Pair: _TypeAlias = Pair\n"
    )


def test_another_generator_is_refused(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator of another version would write code that others' runtimes refuse."""
    monkeypatch.setattr(generator, "GENERATOR_VERSION", "0.0.1")

    with pytest.raises(generator.GenerationError, match=r"0\.0\.1 needed"):
        generator.generate(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_protoc_refuses_is_named(generator: ModuleType, tmp_path: Path) -> None:
    """A broken .proto file ends the run with its name."""
    folder = tmp_path / "pulsemark" / "proto"
    folder.mkdir(parents=True)
    (folder / "broken.proto").write_text("nonsense", encoding="utf-8")

    with pytest.raises(generator.GenerationError, match=r"broken\.proto"):
        generator.generate(tmp_path, source=tmp_path)


def test_import_under_another_name_fails_with_the_cure() -> None:
    """`import proto` from beside the package fails at once and names the right import."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import proto"

    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(PROTO.parent)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "must be imported as 'pulsemark.proto', not as 'proto'" in done.stderr


def test_registry_table_matches_the_fields() -> None:
    """The table in broker_entry.proto names every tag with its number, and no other."""
    text = (PROTO / "broker_entry.proto").read_text(encoding="utf-8")
    table = {name: int(number) for number, name in REGISTRY_LINE.findall(text)}
    fields = broker_entry_pb2.BrokerEntryMetadata.DESCRIPTOR.fields

    assert table == {field.name: field.number for field in fields}


def test_own_tags_stay_in_their_range() -> None:
    """Fields 1 and 2 are Pulsar's, ours lie between 100 and 999, 3 to 99 cannot be taken."""
    numbers = broker_entry_pb2.BrokerEntryMetadata.DESCRIPTOR.fields_by_name

    assert numbers["broker_timestamp"].number == 1
    assert numbers["index"].number == 2
    ours = {field.number for name, field in numbers.items()} - {1, 2}
    assert min(ours) == 100
    assert max(ours) < 1000


def test_ordinary_stamp_has_pulsars_bytes() -> None:
    """With time and index alone, nothing but fields 1 and 2 is written."""
    stamp = broker_entry_pb2.BrokerEntryMetadata(broker_timestamp=1_700_000_000_000, index=300)

    assert stamp.SerializeToString().hex() == "0880d095ffbc3110ac02"


def test_packages_are_our_own() -> None:
    """No message is called pulsar.proto.*, which the official library may register itself."""
    assert pulsar_api_pb2.DESCRIPTOR.package == "pulsemark.pulsar"
    assert broker_entry_pb2.DESCRIPTOR.package == "pulsemark.entry"
