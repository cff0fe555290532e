"""Checks a built site: links and anchors that lead nowhere, and what is loaded from other hosts."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["problems_of"]

#: Elements that load something, and the attribute that says what.
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
#: Values of a link element's `rel` that load something.
LOADING_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch"}


class _Page(HTMLParser):
    """What a page names, leads to and loads."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.leads: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down an element's name and addresses."""
        values = {name: value or "" for name, value in attrs}
        self.names.update(values[name] for name in ("id", "name") if values.get(name))
        if tag == "a" and "href" in values:
            self.leads.append(values["href"])
        if tag == "link" and LOADING_LINKS & set(values.get("rel", "").split()):
            self.loads.append(values.get("href", ""))
        if tag in LOADS and LOADS[tag] in values:
            self.loads.append(values[LOADS[tag]])


def _parsed(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def problems_of(site: Path) -> list[str]:
    """One line for each link that leads nowhere and each thing loaded from elsewhere."""
    pages = {path: _parsed(path) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        if path.name == "404.html":  # served for any path: its links begin at the site's root
            continue
        shown = path.relative_to(site)
        problems += [
            f"{shown}: loads {address}" for address in page.loads if urlsplit(address).netloc
        ]
        for address in (*page.leads, *page.loads):
            wrong = _wrong(address, path, pages)
            if wrong:
                problems.append(f"{shown}: {address}: {wrong}")
    for path in sorted(site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        if "url(http" in text or "@import" in text:
            problems.append(f"{path.relative_to(site)}: loads from another host")
    return problems


def _wrong(address: str, path: Path, pages: dict[Path, _Page]) -> str:
    """What is wrong with a link; "" if nothing is, or it leads to another host."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = path
    if parts.path:
        target = (path.parent / unquote(parts.path)).resolve()
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].names | {"__top"}:
        return "no such anchor"
    return ""
