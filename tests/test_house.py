"""The house in figures: its size, its fragments, and the circles of imports between its folders.

`python tests/test_house.py` prints them. The tests fail if one grows above the limit noted here;
who makes one smaller lowers the limit. Imports for type checkers count like others: who has to read
two folders to understand one does not care which of the imports run.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.test_sizes import too_long

SOURCE = Path(__file__).resolve().parent.parent / "src"
PACKAGE = SOURCE / "pulsemark"
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
REACHED = House(lines=121_000, files=670, largest_folder=41, fragments=15, long_functions=6)
#: Rooms of the broker that import each other, directly or not.
CIRCLE_OF_BROKER = frozenset(
    {
        "audit",
        "cleaning",
        "connection",
        "handlers",
        "metrics",
        "services",
        "subscriptions",
        "topics",
    }
)


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


def test_circles_of_the_broker() -> None:
    """The rooms of the broker that import each other are those noted here, or fewer."""
    rooms = rooms_of(imports_of(modules_of(PACKAGE)), "pulsemark.broker")
    for circle in circles_of(rooms):
        assert circle <= CIRCLE_OF_BROKER, edges_of(rooms, circle)


if __name__ == "__main__":
    print(house_of(PACKAGE))
    found = imports_of(modules_of(PACKAGE))
    for owner in ("broker", "ledger", "client", "kafka", "pipeline", "http"):
        between = rooms_of(found, f"pulsemark.{owner}")
        for ring in circles_of(between):
            print(f"{owner}: {len(ring)} rooms in a circle")
            print("\n".join(f"  {edge}" for edge in edges_of(between, ring)))
