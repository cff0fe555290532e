"""The job `verify`: reads a folder completely, in parallel, and lists everything that is wrong.

That is what `pulsemark verify` finds (docs/reliability.md). The topics are divided among the tasks
by their size, and one more task looks at everything else in the folder. One task reads a topic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..maintenance.verify import sizes_of_topics
from .arguments import checked_options
from .options import ReadOptions, opened_store
from .plan import divided
from .session import require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_TASKS_PER_CORE = 4


def verify(
    spark: SparkSession, path: str | os.PathLike[str], topics: str | Sequence[str] | None = None
) -> DataFrame:
    """The findings, and one row of the kind `Summary` for each task, with what it has read.

    ``severity`` is damage, leftover or note, and null in a summary. A position is that of the first
    entry that a finding is about.

    Args:
        spark: the Spark session.
        path: the data folder, or the address of a store in BookKeeper. A broker may be using it.
        topics: names; by default all topics, and everything else in the folder.

    Raises:
        MissingExtraError: pyspark, pyarrow or numpy is not installed.
        OptionError: an argument is malformed.
        ForeignFolderError: the path is not a data folder.
        UnsupportedVersionError: a newer version wrote the folder.
        TopicNotFoundError: a named topic does not exist.
    """
    require_spark()
    options = ReadOptions.parse(checked_options(path, topics))
    if options.store is None:
        place, sizes = str(options.path), sizes_of_topics(options.path)
    else:
        with opened_store(options.store) as stored:
            place, sizes = str(options.store), dict.fromkeys(stored.topics(), 0)
    if topics is not None:
        names, _ = options.select(sizes)
        sizes = {name: sizes[name] for name in names}
    tasks = divided(sizes, _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    from .job_sources import TASKS_OPTION, VERIFY_FORMAT, VerifySource

    spark.dataSource.register(VerifySource)
    reader = spark.read.format(VERIFY_FORMAT).option("path", place)
    is_whole = topics is None and options.store is None
    whole: list[list[str]] = [[]] if is_whole else []
    return reader.option(TASKS_OPTION, json.dumps([*whole, *tasks])).load()
