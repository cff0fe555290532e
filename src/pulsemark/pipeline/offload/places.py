"""The place of an offload's files: a folder of this machine, or one in an object store.

A file is written in whole or not at all. In a local folder it is written under another name, synced
and renamed. An object store shows an object when its upload is complete, and not before.

A place is named by a path, or by a URI of any file system that pyarrow knows (`file`, `s3`, `gs`,
`abfs`, `hdfs`), or else fsspec (with the package that fsspec needs for it).

An Iceberg table's files are reached as pyiceberg itself reaches them. The catalog's properties
(`s3.endpoint`, `s3.access-key-id`, `gcs.project-id` ...), and those that a catalog gives with a
table, say how. A place is pickled for the workers with what reaches its files, which may be secret.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

from ...ledger.local.io.files import Files
from ...ledger.local.io.folder import make_folder_durably
from ...metadata import crc32c
from ..errors import OptionError
from ..job_files import sync_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs


_READ_BYTES = 1 << 20
"""Read at a time: a piece that stays in the processor's cache until its checksum is made."""
_T = TypeVar("_T")


def place_of(name: str | os.PathLike[str]) -> Place:
    """The place of a path or URI. Raises OptionError for one that cannot be used."""
    text = str(name)
    if "://" not in text and not text.startswith("file:"):
        return LocalPlace(Path(text).absolute())
    parts = urlsplit(text)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise OptionError("target", text, "names another host")
        return LocalPlace(Path(unquote(parts.path)))
    return _remote_place(text)


def read_bytes(place: Place, path: str) -> bytes:
    """A whole file. Raises FileNotFoundError."""
    with place.open(path) as file:
        return bytes(file.read())


def write_bytes(place: Place, path: str, data: bytes) -> None:
    """Write a whole file; see `Place.write`."""
    place.write(path, lambda file: file.write(data))


def file_checksum(place: Place, path: str) -> tuple[int, int]:
    """The size in bytes and the CRC-32C of a file, as they are stored now."""
    size = checksum = 0
    view = memoryview(bytearray(_READ_BYTES))
    with place.open(path) as file:
        while count := file.readinto(view):
            size += count
            checksum = crc32c(view[:count], checksum)
    return size, checksum


def iceberg_place(location: str, properties: Mapping[str, str]) -> Place:
    """The place of a table's location. Raises OptionError for one that cannot be used."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

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
    return Place(location.rstrip("/"), filesystem, path.rstrip("/"))


def _remote_place(uri: str) -> Place:
    import pyarrow as pa
    from pyarrow import fs

    try:
        try:
            filesystem, path = fs.FileSystem.from_uri(uri)
        except pa.ArrowInvalid as error:
            if "Unrecognized filesystem type" not in str(error):
                raise
            from fsspec.core import url_to_fs

            found, path = url_to_fs(uri)
            filesystem = fs.PyFileSystem(fs.FSSpecHandler(found))
    except (pa.ArrowInvalid, ImportError, ValueError, OSError) as error:
        raise OptionError("target", uri, f"is not a place for files: {error}") from error
    if not path.strip("/"):
        raise OptionError("target", uri, "names no bucket or folder")
    return Place(uri.rstrip("/"), filesystem, path.rstrip("/"))


class Place:
    """A folder of a file system that pyarrow or fsspec knows.

    Paths are relative to it; its errors are OSError.

    Args:
        uri: its name.
        filesystem, path: where it is.
    """

    has_locks = False
    """Whether a lock on a file of it keeps other runs out."""

    def __init__(self, uri: str, filesystem: fs.FileSystem, path: str) -> None:
        self.uri = uri
        self._fs = filesystem
        self._path = path

    def _full(self, path: str) -> str:
        return f"{self._path}/{path}"

    def write(self, path: str, fill: Callable[[IO[bytes]], _T]) -> _T:
        """Write a whole file; durable when it returns."""
        from pyarrow import fs

        full = self._full(path)
        if not isinstance(self._fs, fs.S3FileSystem | fs.GcsFileSystem):
            self._fs.create_dir(str(PurePosixPath(full).parent), recursive=True)
        stream: Any = self._fs.open_output_stream(full)
        try:
            result = fill(stream)
        except BaseException:
            # The stream has no other end than one that shows the object.
            stream.close()
            self.remove(path)
            raise
        stream.close()
        return result

    def open(self, path: str) -> pa.NativeFile:
        """A file for reading. Raises FileNotFoundError."""
        return self._fs.open_input_file(self._full(path))

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if it does not exist."""
        from pyarrow import fs

        selector = fs.FileSelector(self._full(folder), allow_not_found=True)
        try:
            return sorted(info.base_name for info in self._fs.get_file_info(selector))
        except NotADirectoryError:
            return []

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            self._fs.delete_file(self._full(path))


class LocalPlace(Place):
    """A folder of this machine, or one that is mounted."""

    has_locks = True

    def __init__(self, folder: Path) -> None:
        from pyarrow import fs

        super().__init__(folder.as_uri(), fs.LocalFileSystem(), str(folder))
        self.folder = folder

    def write(self, path: str, fill: Callable[[IO[bytes]], _T]) -> _T:
        import pyarrow as pa

        final = self.folder / path
        make_folder_durably(Files(), final.parent)
        temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("wb") as file:
                # Arrow writes to its own files without a copy, and to Python's with one.
                with pa.OSFile(str(temporary), "wb") as sink:
                    result = fill(cast("IO[bytes]", sink))
                os.fsync(file.fileno())
            temporary.replace(final)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(final.parent)
        return result
