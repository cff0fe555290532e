"""Build the documentation site from docs/ with Zensical, and check what was built.

    python tools/build_site.py [--out build/site]

1. The pages are copied. A link from docs/ to a file elsewhere in the repository, such as an
   example, becomes a link to a page with that file's text.
2. Zensical builds the site from `mkdocs.yml`. A link to a page or heading that does not exist ends
   the build.
3. The built pages are checked again (`site_check`): every link, picture and anchor leads to
   something in the site, and no page loads anything from another host.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from site_check import problems_of

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".proto": "protobuf", ".md": "markdown", ".go": "go", ".java": "java"}


def copy_pages(source: Path) -> None:
    """Copy docs/ to `source`, with a page for each file elsewhere to which a page has a link."""
    shutil.copytree(DOCS, source)
    needed: set[Path] = set()
    for page in sorted(source.rglob("*.md")):
        own = DOCS / page.relative_to(source)
        inside = partial(_inside, page=own, needed=needed)
        text = LINK.sub(inside, page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")
    for path in sorted(needed):
        target = source / _page_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_file_page(path), encoding="utf-8")


def _inside(link: re.Match[str], page: Path, needed: set[Path]) -> str:
    target = Path(os.path.normpath(page.parent / link[1]))
    if target.is_relative_to(DOCS) or not target.is_file():
        return link[0]
    path = target.relative_to(ROOT)
    needed.add(path)
    back = "/".join([".."] * len(page.relative_to(DOCS).parent.parts))
    return f"]({Path(back) / _page_of(path)})"


def _page_of(path: Path) -> Path:
    return Path("files") / path.with_name(f"{path.name}.md")


def _file_page(path: Path) -> str:
    language = LANGUAGES.get(path.suffix, "text")
    text = (ROOT / path).read_text(encoding="utf-8")
    return f"# {path}\n\n````{language}\n{text}````\n"


def build(out: Path) -> None:
    """Build the site into `out`, which is replaced.

    Raises:
        SystemExit: Zensical is not installed, or found something wrong.
    """
    if importlib.util.find_spec("zensical") is None:
        raise SystemExit("zensical is not installed: pip install -c constraints.txt '.[docs]'")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        copy_pages(work / "docs")
        shutil.copy(ROOT / "mkdocs.yml", work)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        environment = {**os.environ, "NO_COLOR": "1"}
        built = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        if built.returncode != 0:
            raise SystemExit(f"{built.stdout}{built.stderr}")
        if out.exists():
            shutil.rmtree(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(work / "site", out)


def main() -> int:
    """Build and check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    out = parser.parse_args().out.resolve()
    build(out)
    problems = problems_of(out)
    for problem in problems:
        print(problem, file=sys.stderr)
    pages = len(list(out.rglob("*.html")))
    size_kib = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) // 1024
    print(f"{pages} pages, {size_kib:,} KiB, {len(problems)} problems: {out}")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
