"""Register the sources in a Spark session."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from .errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDED = ("pyspark", "pyarrow", "numpy", "cramjam", "fastavro")


def require_spark() -> None:
    """Check that the packages of the extra ``spark`` are installed.

    Raises:
        MissingExtraError: a package is not installed.
    """
    for module in _NEEDED:
        if find_spec(module) is None:
            raise MissingExtraError("spark", module)


def register(spark: SparkSession) -> None:
    """Let ``spark.read.format("pulsar-ledger")``, and ``"pulsemark"``, read data folders.

    Raises:
        MissingExtraError: a package of the extra `spark` is not installed.
    """
    require_spark()
    from .source import LedgerSource, PulsemarkSource

    for source in (LedgerSource, PulsemarkSource):
        spark.dataSource.register(source)
