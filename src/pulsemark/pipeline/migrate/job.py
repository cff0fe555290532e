"""The driver's part of a migration: plan, let the workers copy, make it visible.

The plan is fixed when a migration begins: so many entries of each topic. What comes later is not
copied. To move a folder that is in use, stop its broker first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...client import ClientError, ServiceUrlError
from ...ledger import FolderReader
from ..errors import JobFailedError, MigrateError, OptionError
from ..options import full_topic_name
from ..registration import require_spark
from . import folder_topics, pulsar_topics
from .entry_format import EntryFormat
from .segments import Written
from .staging import Staging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MigrateResult", "TopicResult", "check_migration", "migrate"]

_SCHEMES = ("pulsar://", "pulsar+ssl://")


@dataclass(frozen=True, slots=True)
class TopicResult:
    """One topic of the target."""

    topic: str
    entries: int
    messages: int
    body_bytes: int
    """Of the producers' bytes, without prefixes."""
    changed: int
    """Entries whose prefix was added, completed or removed; from a broker, those whose time is the
    producer's, because the source showed no stamp."""
    next_index: int
    """The index that the next message will get."""


@dataclass(frozen=True, slots=True)
class MigrateResult:
    """What was migrated; the store's own topics are left out."""

    topics: tuple[TopicResult, ...]

    @property
    def messages(self) -> int:
        """Messages of all topics."""
        return sum(topic.messages for topic in self.topics)


def check_migration(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    entry_format: str,
    topics: Sequence[str] | None,
    namespaces: Sequence[str] | None,
) -> tuple[str | None, list[str]]:
    """The source's URL, None for a folder, and full names of its topics.

    Raises:
        OptionError: an argument is malformed, or the target exists.
        ForeignFolderError, UnsupportedVersionError: the source is not a data folder of this
            version.
    """
    if entry_format not in list(EntryFormat):
        known = " or ".join(EntryFormat)
        raise OptionError("entryFormat", entry_format, f"must be {known}")
    Staging(target).check_target()
    if not str(source).startswith(_SCHEMES):
        if topics or namespaces:
            name, value = ("topic", topics) if topics else ("namespace", namespaces)
            reason = "is for a broker as source; a folder is migrated as a whole"
            raise OptionError(name, ",".join(value or ()), reason)
        with FolderReader(source):
            pass
        here, there = Path(source).resolve(), Path(target).resolve()
        if here == there or here in there.parents:
            raise OptionError("target", str(target), "is inside the source")
        return None, []
    try:
        pulsar_topics.service_of(str(source), None)
    except ServiceUrlError as error:
        raise OptionError("source", str(source), error.reason) from error
    if not topics and not namespaces:
        raise OptionError("topic", None, "is required for a broker as source, or a namespace")
    names = []
    for name in topics or ():
        try:
            names.append(full_topic_name(name))
        except ValueError as error:
            raise OptionError("topic", name, str(error)) from error
    for namespace in namespaces or ():
        if len(namespace.split("/")) != 2 or not all(namespace.split("/")):
            raise OptionError("namespace", namespace, "is not of the form TENANT/NAMESPACE")
    return str(source), names


def migrate(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    entry_format: str = EntryFormat.STAMPED,
    topics: Sequence[str] | None = None,
    namespaces: Sequence[str] | None = None,
    token: str | None = None,
) -> MigrateResult:
    """Make a new data folder with a source's entries in one form, and the producers' bytes as is.

    Args:
        spark: the Spark session; its workers see source and target under these paths.
        source: a data folder, which is only read; or the URL of a broker, ``pulsar://HOST:PORT``.
        target: the new data folder. It appears when everything is in it.
        entry_format: ``stamped`` or ``plain``, see `EntryFormat`.
        topics: names, of a broker.
        namespaces: all topics of these, of a broker.
        token: a token for authentication at a broker.

    Raises:
        MissingExtraError: pyspark, pyarrow or numpy is not installed.
        OptionError: an argument is malformed, the target exists, or another run is making it.
        ForeignFolderError, UnsupportedVersionError: the source is not a data folder of this
            version.
        MigrateError: a topic cannot be migrated; nothing is visible.
        JobFailedError: the broker cannot be reached.
    """
    require_spark()
    url, names = check_migration(source, target, entry_format, topics, namespaces)
    place = str(source) if url is not None else str(Path(source).resolve())
    settings = {
        "source": place,
        "entryFormat": str(entry_format),
        "topics": sorted(names),
        "namespaces": sorted(namespaces or ()),
    }
    staging = Staging(target)
    with staging.lock():
        plan = staging.plan(settings)
        if plan is None:
            plan = _planned(place, url, token, names, list(namespaces or ()))
            staging.begin(settings, plan)
        if not staging.is_visible:
            _copied(spark, staging, plan, settings, url, token)
            if url is None:
                folder_topics.fill_catalog(Path(place), staging, plan)
            else:
                pulsar_topics.fill_catalog(staging, plan)
            results = _results(staging, plan)
            staging.publish()
        else:
            results = _results(staging, plan)
        staging.clean()
    return MigrateResult(results)


def _planned(
    place: str, url: str | None, token: str | None, names: list[str], namespaces: list[str]
) -> dict[str, Any]:
    if url is None:
        return folder_topics.plan_of(Path(place))
    try:
        return pulsar_topics.plan_of(url, token, names, namespaces)
    except (ClientError, OSError) as error:
        raise JobFailedError(str(error)) from error


def _copied(
    spark: SparkSession,
    staging: Staging,
    plan: dict[str, Any],
    settings: dict[str, Any],
    url: str | None,
    token: str | None,
) -> None:
    """Let the workers copy all topics of a plan."""
    sizes = [sum(each[2] for each in topic.get("segments", ())) for topic in plan["topics"]]
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    if not order:
        return
    content = {
        "plan": plan,
        "order": order,
        "target": str(staging.target),
        "source": settings["source"],
        "entry_format": settings["entryFormat"],
        "url": url,
    }
    from .source import MIGRATE_FORMAT, PLAN_OPTION, TOKEN_OPTION, MigrateSource

    spark.dataSource.register(MigrateSource)
    reader = spark.read.format(MIGRATE_FORMAT).option(PLAN_OPTION, json.dumps(content))
    if token is not None:
        reader = reader.option(TOKEN_OPTION, token)
    copied = reader.load().collect()
    if len(copied) != len(order):
        raise MigrateError(str(settings["source"]), f"{len(copied)} of {len(order)} topics copied")


def _results(staging: Staging, plan: dict[str, Any]) -> tuple[TopicResult, ...]:
    found = []
    for planned in plan["topics"]:
        if "://" not in planned["topic"]:
            continue
        last = _last(staging, planned)
        digest = None if last is None else last.digest
        found.append(
            TopicResult(
                planned["topic"],
                0 if digest is None else digest.entries,
                0 if digest is None else digest.messages,
                0 if digest is None else digest.body_bytes,
                0 if last is None else last.added,
                0 if last is None else last.next_index,
            )
        )
    return tuple(found)


def _last(staging: Staging, planned: dict[str, Any]) -> Written | None:
    if "segments" in planned:
        ledger_id, number, _ = planned["segments"][-1]
        return staging.written(ledger_id, number)
    last, number = None, 0
    while (found := staging.written(planned["topic_id"], number)) is not None:
        last, number = found, number + 1
    return last
