"""The documentation site: its pages are in the navigation, its links lead somewhere, it builds."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of tools/ with this interpreter."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=110
    )


def without_code(text: str) -> str:
    """A page's text without its blocks of code."""
    return re.sub(r"^(`{3,}).*?^\1`*$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as the generator of the site makes them."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        name, number = slug, 0
        while name in found:
            number += 1
            name = f"{slug}_{number}"
        found.add(name)
    return found


def test_the_navigation_has_every_page_once() -> None:
    """A page that is not in mkdocs.yml would be found by no reader of the site."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r": (\S+\.md)$", text.partition("\nnav:\n")[2], re.MULTILINE)
    assert sorted(named) == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_anchors_of_links_are_headings(name: str) -> None:
    """Every link to a heading of a page names one that exists."""
    links = re.findall(r"\]\(([\w-]+\.md)?#([^)\s]+)\)", without_code((DOCS / name).read_text()))
    for page, anchor in links:
        anchors = anchors_of((DOCS / (page or name)).read_text(encoding="utf-8"))
        assert anchor in anchors, f"{name}: {page}#{anchor}"


def test_generated_pages_are_those_of_the_code() -> None:
    """Commands, settings, REST, gRPC, Kafka's requests and metrics are documented as they are."""
    checked = run_tool("tools/write_references.py", "--check")
    hint = "run python tools/write_references.py"
    assert checked.returncode == 0, f"{checked.stdout}{checked.stderr}\n{hint}"


def test_what_is_wrong_with_a_built_site_is_named(tmp_path: Path) -> None:
    """A missing page, a missing anchor and what is loaded from another host are reported."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h1 id="here">x</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="other/#here">good</a><a href="https://example.org">good</a>'
        '<a href="other/#gone">1</a><a href="missing/">2</a>'
        '<script src="https://cdn.example.org/x.js"></script>'
        '<link rel="stylesheet" href="//fonts.example.org/x.css">'
    )
    code = (
        "import sys; from pathlib import Path; from site_check import problems_of\n"
        "print(*problems_of(Path(sys.argv[1])), sep='\\n')"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    printed = subprocess.run(
        command, cwd=ROOT / "tools", capture_output=True, text=True, check=True, timeout=60
    )
    assert sorted(printed.stdout.splitlines()) == [
        "index.html: loads //fonts.example.org/x.css",
        "index.html: loads https://cdn.example.org/x.js",
        "index.html: missing/: no such file",
        "index.html: other/#gone: no such anchor",
    ]


@pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None,
    reason="zensical is not installed: `make docs` installs it (90 MB) and builds the site",
)
def test_the_site_builds_without_a_problem(tmp_path: Path) -> None:
    """The strict build finds no broken link, and the built pages load nothing from elsewhere."""
    built = run_tool("tools/build_site.py", "--out", str(tmp_path / "site"))
    assert built.returncode == 0, built.stdout + built.stderr
    for name in PAGES:
        page = "" if name == "index.md" else name.removesuffix(".md")
        assert (tmp_path / "site" / page / "index.html").is_file()
