"""Replace the content of a Delta table by the files of a compaction, in one commit."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..columns import arrow_schema_of
from ..errors import JobFailedError, OptionError
from ..offload.delta_table import DeltaTarget

if TYPE_CHECKING:
    from .job import LatestFile


def overwrite(target: DeltaTarget, columns: Sequence[str], files: Sequence[LatestFile]) -> None:
    """Let the table have these files and no others.

    Raises:
        OptionError: the target is a table of other columns.
        JobFailedError: another process changed the table meanwhile.
    """
    from deltalake import CommitProperties, Schema
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction

    schema = Schema.from_arrow(arrow_schema_of(columns))
    table = target.opened(schema, ())
    if table is None:
        raise OptionError("target", target.name, "is a Delta table of other columns")
    now_ms = int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [
        AddAction(
            file.path, file.size_bytes, {}, now_ms, True, json.dumps({"numRecords": file.rows})
        )
        for file in files
    ]
    properties = CommitProperties(custom_metadata={"pulsemark": "compact"})
    try:
        table.create_write_transaction(
            actions, "overwrite", schema, [], commit_properties=properties
        )
    except CommitFailedError as error:
        raise JobFailedError(f"{target.name}: {error}") from error
