"""Where an Iceberg table's files are, reached as pyiceberg itself reaches them.

The catalog's properties (`s3.endpoint`, `s3.access-key-id`, `gcs.project-id` ...), and those that a
catalog gives with a table, say how. Workers have neither; so a place names them too (`access`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import OptionError
from .places import LocalPlace, Place, place_of


def iceberg_place(location: str, properties: Mapping[str, str]) -> Place:
    """The place of a table's location. Raises OptionError for one that cannot be used."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from .remote_place import RemotePlace

    given = dict(properties)
    scheme, host, path = PyArrowFileIO.parse_location(location, given)
    if scheme == "file":
        return LocalPlace(Path(path))  # nothing in it is percent-encoded
    try:
        filesystem = PyArrowFileIO(given).fs_by_scheme(scheme, host)
    except ValueError:
        return place_of(location)  # a scheme that pyiceberg leaves to fsspec
    except (ImportError, OSError) as error:
        raise OptionError("table", location, f"is not a place for files: {error}") from error
    return RemotePlace(location.rstrip("/"), filesystem, path.rstrip("/"), given)
