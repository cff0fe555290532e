"""`pulsemark rebuild-catalog`: rebuild a damaged catalog from the segments.

Use it when a folder cannot be opened because its catalog is damaged. The folder must not be in use.
The old catalog is kept next to the new one. Everything in it that can still be read is copied.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ..ledger import LedgerError
from ..maintenance.rebuild import RebuiltCatalog, rebuild_catalog
from .options import DEFAULT_DATA_DIR, add_data_dir, add_json, counted, json_line

ERRORS = (LedgerError, OSError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("folder", nargs="?", type=Path, metavar="DATA_DIR", help="as --data-dir")
    add_data_dir(place, why="a folder not in use")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Rebuild the catalog and print what was found."""
    logging.getLogger("pulsemark.ledger").addHandler(logging.NullHandler())
    rebuilt = rebuild_catalog(args.folder or args.data_dir or DEFAULT_DATA_DIR)
    print(_as_json(rebuilt) if args.json else _as_text(rebuilt))
    return 0


def _as_json(rebuilt: RebuiltCatalog) -> str:
    return json_line(
        {
            "folder": str(rebuilt.folder),
            "moved_to": str(rebuilt.moved_to) if rebuilt.moved_to else None,
            "topics": rebuilt.topics,
            "segments": rebuilt.segments,
            "kept_topics": rebuilt.kept_topics,
            "kept_properties": rebuilt.kept_properties,
            "all_kept": rebuilt.all_kept,
        }
    )


def _as_text(rebuilt: RebuiltCatalog) -> str:
    found = f"{counted(rebuilt.topics, 'topic')} with {counted(rebuilt.segments, 'segment')}"
    lines = [f"found {found} from segment files"]
    if rebuilt.moved_to is not None:
        lines += [
            f"the old catalog is now {rebuilt.moved_to}",
            f"topics without entries read from it: {rebuilt.kept_topics}",
            f"namespaces, schemas and the like read from it: {rebuilt.kept_properties}",
        ]
    if not rebuilt.all_kept:
        lines.append(
            "lost: everything that only the old catalog held and that could not be read: "
            "namespaces, policies, schemas, partitioned topics, topics without entries"
        )
    return "\n".join(lines)
