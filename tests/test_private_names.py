"""Which private names of the sources tests use, and why there is no public way.

A test that reads `thing._part` ties the sources' inside down. Where a public name exists, or would
be natural, tests use that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent

#: Public, whatever they look like: the underscore keeps them apart from a named tuple's fields.
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}

#: By reason: the test modules, and the private names that each may use.
ALLOWED: dict[str, dict[str, set[str]]] = {
    "how much is kept inside, which nothing outside shows": {
        "broker/test_memory.py": {"_by_topic"},
        "broker/subscriptions/test_delayed.py": {"_heap"},
        "broker/subscriptions/test_waiting_entries.py": {"_heaps"},
        "broker/test_cooperative.py": {"_leaving"},
        "broker/topics/test_catalog_writer.py": {
            "_epochs",
        },
        "wire/test_frames.py": {"_block"},
    },
    "a step is done at once that a timer or a thread would do": {
        "broker/test_memory.py": {"_measure"},
        "broker/connection/test_paused.py": {"_pauses"},
        "compaction/test_compaction.py": {"_cache", "_delete_belongings"},
        "compaction/test_view.py": {"_cache"},
        "ledger/local/io/test_reserve.py": {"_give_back", "_reserve"},
        "ledger/local/test_folder_following.py": {"_chunks", "_filer"},
        "ledger/local/test_store.py": {"_jobs", "_spare_ids"},
        "ledger/memory/test_store.py": {"_disown"},
        "ledger/commit/test_read_throttle.py": {"_delivery", "_notify"},
    },
    "a step in the middle fails, waits or is counted": {
        "broker/cleaning/test_worker.py": {"_on_loop"},
        "broker/connection/test_gathering.py": {"_gathering"},
        "broker/topics/test_schema_definitions.py": {"_parse"},
        "broker/topics/test_catalog_writer.py": {"_store_epoch"},
        "broker/topics/test_policy_store.py": {"_chain", "_installed_plugins"},
        "finder/test_server.py": {"_pool"},
        "ledger/local/test_damage.py": {"_catalog", "_ended"},
        "broker/test_slices.py": {"_take"},
        "cluster/test_shared_catalog.py": {"_nodes"},
        "ledger/commit/test_group_commit.py": {"_commit_s", "_done", "_sleep"},
        "ledger/local/test_interrupts.py": {"_commit_plainly"},
        "ledger/test_waiting.py": {"_locks"},
        "ledger/local/test_store_ownership.py": {
            "_checkpointer", "_end_deletions", "_gather", "_sync",
        },
        "pipeline/decode/test_runs.py": {"_read_one"},
        "testing/conformance/test_notices.py": {"_owner"},
    },
    "the interpreter's threads and event loops, which a simulation runs one at a time": {
        "support/simulated_threads.py": {"_PySimpleQueue", "_active", "_ready"},
        "support/virtual_loop.py": {
            "_check_closed", "_log_destroy_pending", "_ready", "_scheduled", "_thread_id",
        },
    },
    "what argparse shows in no other way": {
        "support/word_tree.py": {"_actions", "_choices_actions", "_SubParsersAction"},
    },
    "a number or layout that a document names, or a table that is checked as a whole": {
        "ledger/local/test_formats_doc.py": {
            "_BLOCK", "_CHUNK", "_CHUNK_LEAD", "_COLUMNS", "_COPY_SIZE", "_CUT", "_ENTRY",
            "_FIXED", "_GROUP", "_HEADER", "_LEAD", "_SMALL_BLOCK_BYTES",
            "_SUMMARY", "_TRAILER", "_ZEROS", "_rows",
        },
        "metadata/test_prefix.py": {"_HIGH_GROUPS_MAX_COUNT", "_high_groups"},
        "test_face.py": {"_PACKAGE_OF"},
    },
}  # fmt: skip


def private_names(text: str) -> Iterator[str]:
    """The private names that a module asks others for, or sets on them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and not _is_own(node.value):
            name = node.attr
        elif isinstance(node, ast.Call) and _is_setattr(node):
            name = str(ast.literal_eval(node.args[1]))
        else:
            continue
        if name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES:
            yield name


def _is_own(value: ast.expr) -> bool:
    """Whether an attribute of ``value`` is the test's own, or the interpreter's."""
    return ast.unparse(value) in {"self", "cls", "super()", "sys", "os"}


def _is_setattr(call: ast.Call) -> bool:
    """Whether it is `monkeypatch.setattr(thing, "name", ...)`."""
    is_named = isinstance(call.func, ast.Attribute) and call.func.attr == "setattr"
    return is_named and len(call.args) > 1 and isinstance(call.args[1], ast.Constant)


def test_private_names_stay_few() -> None:
    """Tests use the private names that the table has a reason for, and the table no others."""
    found = {
        (str(path.relative_to(TESTS)), name)
        for path in sorted(TESTS.rglob("*.py"))
        for name in private_names(path.read_text(encoding="utf-8"))
    }
    allowed = {
        (module, name)
        for modules in ALLOWED.values()
        for module, names in modules.items()
        for name in names
    }
    assert found - allowed == set(), "use a public name, or say why there is none"
    assert allowed - found == set(), "not used any more: take them off the table"


def test_private_names_are_found() -> None:
    """As attributes and in `monkeypatch.setattr`; not the test's own, nor a named tuple's."""
    text = """
class Test:
    def test(self, monkeypatch, store):
        self._mine = super()._mine
        store._theirs.append(store.__dict__)
        monkeypatch.setattr(store, "_patched", None)
        monkeypatch.setattr(store, "public", store.place._replace(entry_id=1))
"""
    assert set(private_names(text)) == {"_theirs", "_patched"}
