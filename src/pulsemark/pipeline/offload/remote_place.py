"""A folder of an object store, or of another file system that pyarrow or fsspec knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import IO, Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from ..errors import OptionError

_T = TypeVar("_T")


def remote_place(uri: str) -> RemotePlace:
    """The place of a URI. Raises OptionError for one that cannot be used."""
    try:
        filesystem, path = _file_system(uri)
    except (pa.ArrowInvalid, ImportError, ValueError, OSError) as error:
        raise OptionError("target", uri, f"is not a place for files: {error}") from error
    if not path.strip("/"):
        raise OptionError("target", uri, "names no bucket or folder")
    return RemotePlace(uri.rstrip("/"), filesystem, path.rstrip("/"))


def _file_system(uri: str) -> tuple[fs.FileSystem, str]:
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except pa.ArrowInvalid as error:
        if "Unrecognized filesystem type" not in str(error):
            raise
        from fsspec.core import url_to_fs

        filesystem, path = url_to_fs(uri)
        return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), str(path)
    return filesystem, str(path)


class RemotePlace:
    """A folder of an object store, or of another file system that pyarrow or fsspec knows."""

    has_locks = False

    def __init__(
        self,
        uri: str,
        filesystem: fs.FileSystem,
        path: str,
        access: Mapping[str, str] | None = None,
    ) -> None:
        self.uri = uri
        self.access = access or {}
        self._fs = filesystem
        self._path = path

    def _full(self, path: str) -> str:
        return f"{self._path}/{path}"

    def write(self, path: str, fill: Callable[[IO[bytes]], _T], *, keep: bool = False) -> _T:
        """See `Place`. With ``keep``, a file that appears meanwhile is not noticed."""
        full = self._full(path)
        if keep and self._fs.get_file_info(full).type != fs.FileType.NotFound:
            raise FileExistsError(full)
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
        """See `Place`."""
        return self._fs.open_input_file(self._full(path))

    def names(self, folder: str) -> list[str]:
        """See `Place`."""
        selector = fs.FileSelector(self._full(folder), allow_not_found=True)
        return sorted(info.base_name for info in self._fs.get_file_info(selector))

    def remove(self, path: str) -> None:
        """See `Place`."""
        try:
            self._fs.delete_file(self._full(path))
        except FileNotFoundError:
            return
