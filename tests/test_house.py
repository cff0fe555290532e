"""The house in figures: its size, its fragments, and the circles of imports between its folders.

`python -m tests.test_house` prints them. The tests fail if one grows above the limit noted here;
who makes one smaller lowers the limit. Imports for type checkers count like others: who has to read
two folders to understand one does not care which of the imports run.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.test_sizes import too_long

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "pulsemark"
#: A module with fewer lines and a single importer is a part of that importer.
FRAGMENT_LINES = 60

Imports = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class House:
    """The figures of a package."""

    lines: int
    files: int
    #: Modules in the folder that has the most.
    largest_folder: int
    #: Modules below `FRAGMENT_LINES` that one other module imports.
    fragments: int
    #: Functions above the limit of `test_sizes`.
    long_functions: int


#: What was reached. A figure above it fails.
REACHED = House(lines=115_969, files=450, largest_folder=24, fragments=0, long_functions=2)


def modules_of(package: Path) -> dict[str, Path]:
    """The modules of a package by their dotted names, without generated code."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        if "_pb2" not in path.name:
            parts = path.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(modules: Mapping[str, Path]) -> Imports:
    """Which of these modules each of them imports, anywhere in it."""
    return {
        name: frozenset(_imported(name, path, modules)) - {name} for name, path in modules.items()
    }


def _imported(name: str, path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        parents = package.split(".")
        base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
        source = ".".join(filter(None, (base, node.module)))
        for alias in node.names:
            inside = f"{source}.{alias.name}"
            if inside in modules:
                yield inside
            elif source in modules:
                yield source


def rooms_of(imports: Imports, package: str) -> Imports:
    """The imports between the rooms of a package: its folders, and the modules beside them."""
    found: dict[str, set[str]] = {}
    for name, imported in imports.items():
        if name.startswith(f"{package}."):
            room = name.removeprefix(f"{package}.").partition(".")[0]
            inside = (each for each in imported if each.startswith(f"{package}."))
            rooms = {each.removeprefix(f"{package}.").partition(".")[0] for each in inside}
            found.setdefault(room, set()).update(rooms - {room})
    return {room: frozenset(used) for room, used in found.items()}


def circles_of(imports: Imports) -> list[frozenset[str]]:
    """The largest sets of rooms of which each one imports every other, directly or not."""
    reached = {room: _reached(room, imports) for room in imports}
    found = {
        frozenset(other for other in reached[room] if room in reached[other])
        for room in imports
        if room in reached[room]
    }
    return sorted(found, key=sorted)


def _reached(start: str, imports: Imports) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for each in imports.get(waiting.pop(), frozenset()) - seen:
            seen.add(each)
            waiting.append(each)
    return seen


def fragments_of(modules: Mapping[str, Path], imports: Imports) -> list[str]:
    """Short modules with a single importer."""
    importers = Counter(each for imported in imports.values() for each in imported)
    return [
        name
        for name, path in modules.items()
        if path.name not in ("__init__.py", "__main__.py")
        and importers[name] == 1
        and _lines(path) < FRAGMENT_LINES
    ]


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def house_of(package: Path) -> House:
    """Measure a package."""
    modules = modules_of(package)
    folders = Counter(path.parent for path in modules.values())
    return House(
        lines=sum(map(_lines, modules.values())),
        files=len(modules),
        largest_folder=max(folders.values()),
        fragments=len(fragments_of(modules, imports_of(modules))),
        long_functions=len(list(too_long(package))),
    )


def edges_of(rooms: Imports, circle: Iterable[str]) -> list[str]:
    """The imports inside a circle, one line for each room."""
    inside = frozenset(circle)
    return [f"{room} -> {', '.join(sorted(rooms[room] & inside))}" for room in sorted(inside)]


def test_the_house_does_not_grow() -> None:
    """No figure is above what was reached."""
    now = house_of(PACKAGE)
    names = House.__slots__
    grown = {
        name: getattr(now, name) for name in names if getattr(now, name) > getattr(REACHED, name)
    }
    assert grown == {}, f"{REACHED=}"


def layers_of(container: str) -> list[set[str]]:
    """The layers of a package in pyproject.toml, from above; rooms of one layer stand together."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers" and contract["containers"] == [container]:
            return [{room.strip() for room in layer.split("|")} for layer in contract["layers"]]
    raise AssertionError(f"no layers for {container}")


def upward(rooms: Imports, layers: list[set[str]]) -> list[str]:
    """The imports from a room to one of the same layer, or of one above."""
    height = {room: number for number, layer in enumerate(reversed(layers)) for room in layer}
    return [
        f"{room} -> {used}"
        for room, imported in sorted(rooms.items())
        for used in sorted(imported)
        if height[used] >= height[room]
    ]


def test_the_broker_has_one_order() -> None:
    """Each room of the broker uses only those below it, typing imports included."""
    rooms = rooms_of(imports_of(modules_of(PACKAGE)), "pulsemark.broker")
    assert upward(rooms, layers_of("pulsemark.broker")) == []
    assert circles_of(rooms) == []


def test_imports_for_type_checkers_count(tmp_path: Path) -> None:
    """Two rooms of which one uses the other only for annotations are a circle."""
    for room, text in (
        ("low", "if TYPE_CHECKING:\n    from ..high.roof import Roof\n"),
        ("high", "def build():\n    from ..low import wall\n"),
        ("apart", "from ..low import wall\n"),
    ):
        (tmp_path / "house" / room).mkdir(parents=True)
        (tmp_path / "house" / room / "__init__.py").touch()
        (tmp_path / "house" / room / {"high": "roof.py"}.get(room, "wall.py")).write_text(text)
    rooms = rooms_of(imports_of(modules_of(tmp_path / "house")), "house")
    assert circles_of(rooms) == [frozenset({"low", "high"})]
    assert upward(rooms, [{"apart"}, {"high"}, {"low"}]) == ["low -> high"]
    assert edges_of(rooms, ("high", "low")) == ["high -> low", "low -> high"]


def test_a_module_gives_a_name_once() -> None:
    """No constant, function or class of a module hides another one of the same name."""
    twice = {}
    for name, path in modules_of(PACKAGE).items():
        counts = Counter(_top_level_names(ast.parse(path.read_text(encoding="utf-8"))))
        repeated = sorted(each for each, count in counts.items() if count > 1)
        if repeated:
            twice[name] = repeated
    assert twice == {}


def _top_level_names(module: ast.Module) -> Iterator[str]:
    """The names that a module's own statements bind, without those of overloads."""
    for node in module.body:
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not any(
            ast.unparse(each).endswith("overload") for each in node.decorator_list
        ):
            yield node.name


if __name__ == "__main__":
    print(house_of(PACKAGE))
    found = imports_of(modules_of(PACKAGE))
    for owner in ("broker", "ledger", "client", "kafka", "pipeline", "http"):
        between = rooms_of(found, f"pulsemark.{owner}")
        for ring in circles_of(between):
            print(f"{owner}: {len(ring)} rooms in a circle")
            print("\n".join(f"  {edge}" for edge in edges_of(between, ring)))
