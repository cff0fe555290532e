"""What the offload's tests share: tasks without a JVM, topics over hours, and tables to compare."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsemark.pipeline.offload import DeltaTarget, IcebergTarget, OffloadResult, offload
from pulsemark.pipeline.offload.table import OffloadTable, ParquetFolder
from pulsemark.testing.raw_messages import BatchMember

HOUR_MS = 3_600_000
_FACTS = ("__topic", "__index", "value")


def copy(folder: Any, target: Any, **arguments: Any) -> OffloadResult:
    """An offload of the folder as it is now."""
    spark: Any = arguments.pop("spark", None) or folder.in_process(
        arguments.pop("files_before_kill", None)
    )
    return offload(spark, folder.path, target, **arguments)


def fill(topic: Any, folder: Any, hours: int, each: int = 6) -> None:
    """In each hour a few batches, singles and a control entry."""
    for _ in range(hours):
        for number in range(each):
            topic.batch([BatchMember(payload=b"b%d" % place) for place in range(4)])
            topic.single(b"s%d" % number, key="k")
            folder.clock.advance(by_ms=HOUR_MS // each)
        topic.control()


def table_rows(table: OffloadTable) -> pa.Table:
    """All rows of a table, as the format's own library reads them."""
    if isinstance(table, DeltaTarget):
        from deltalake import DeltaTable

        return pa.table(DeltaTable(table.name).to_pyarrow_table())
    if isinstance(table, IcebergTarget):
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("tests", **table.properties)
        return catalog.load_table(table.name).scan().to_arrow()
    paths = sorted(Path(table.name).glob("topic=*/*/*.parquet"))
    tables = [pq.read_table(path, partitioning=None) for path in paths]
    return (
        pa.concat_tables(tables, promote_options="default")
        if tables
        else pa.table({name: [] for name in _FACTS})
    )


def rows_in(table: OffloadTable) -> list[tuple[Any, ...]]:
    """(topic, index, value) of all rows, sorted."""
    rows = table_rows(table).select(_FACTS).to_pylist()
    return sorted(tuple(row[name] for name in _FACTS) for row in rows)


def truth(*topics: Any) -> list[tuple[Any, ...]]:
    """What the table must have."""
    return sorted(tuple(row[name] for name in _FACTS) for topic in topics for row in topic.rows)


_TOOLS = ("copy", "fill", "rows_in", "table_rows", "truth")


@pytest.fixture(scope="session")
def run() -> Any:
    """The functions above, for the test modules, which cannot import this one."""
    return type("Run", (), {name: staticmethod(globals()[name]) for name in _TOOLS})


MakeTable = Callable[..., OffloadTable]


def _made(kind: str, folder: Path, name: str) -> OffloadTable:
    if kind == "parquet":
        return ParquetFolder(folder / name)
    if kind == "delta":
        return DeltaTarget(folder / name)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'catalog.db'}",
        "warehouse": f"file://{folder / 'warehouse'}",
    }
    return IcebergTarget(f"archive.{name}", "tests", properties)


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def make_table(request: pytest.FixtureRequest, tmp_path: Path) -> MakeTable:
    """Opens a table by name; each call is as another process would open it."""
    return lambda name="out": _made(request.param, tmp_path, name)


@pytest.fixture(params=["delta", "iceberg"])
def make_lake_table(request: pytest.FixtureRequest, tmp_path: Path) -> MakeTable:
    """The same for tables with transactions."""
    return lambda name="out": _made(request.param, tmp_path, name)


class _ObjectStore(BaseHTTPRequestHandler):
    """As much of S3 as pyarrow asks for: whole objects, parts of uploads, lists, removals.

    Only who signs with the key ``somebody`` gets an answer.
    """

    protocol_version = "HTTP/1.1"
    server: _ObjectServer

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _handle(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = _unchunked(self.rfile)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" in self.headers.get("Content-Encoding", ""):
            body = _unchunked(io.BytesIO(body))
        parts = urlsplit(self.path)
        key, query = unquote(parts.path).strip("/"), dict(parse_qsl(parts.query, True))
        if "Credential=somebody/" not in self.headers.get("Authorization", ""):
            self._answer(403)
        elif self.command in ("GET", "HEAD"):
            self._read(key, query)
        elif self.command == "DELETE":
            self.server.objects.pop(key, None)
            self._answer(204)
        else:
            self._write(key, query, body)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _read(self, key: str, query: dict[str, str]) -> None:
        if "list-type" in query:
            inside = f"{key}/{query.get('prefix', '')}"
            found = sorted(name for name in self.server.objects if name.startswith(inside))
            listed = "".join(
                f"<Contents><Key>{escape(name.removeprefix(key + '/'))}</Key>"
                f"<Size>{len(self.server.objects[name])}</Size></Contents>"
                for name in found
            )
            count = f"<KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>"
            self._answer(200, f"<ListBucketResult>{count}{listed}</ListBucketResult>".encode())
        elif key in self.server.objects:
            data = self.server.objects[key]
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if wanted:
                data = data[int(wanted[1]) : int(wanted[2] or len(data)) + 1]
            self._answer(206 if wanted else 200, data)
        else:
            self._answer(404)

    def _write(self, key: str, query: dict[str, str], body: bytes) -> None:
        uploads = self.server.uploads
        if "uploads" in query:
            upload = str(len(uploads))
            uploads[upload] = {}
            name = f"<UploadId>{upload}</UploadId>"
            answer = f"<InitiateMultipartUploadResult>{name}</InitiateMultipartUploadResult>"
            self._answer(200, answer.encode())
        elif "partNumber" in query:
            uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200)
        elif "uploadId" in query:
            parts = uploads.pop(query["uploadId"])
            self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
            self._answer(200, b"<CompleteMultipartUploadResult/>")
        else:
            self.server.objects[key] = body
            self._answer(200)

    def _answer(self, status: int, data: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Sun, 01 Mar 2026 10:00:00 GMT")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _unchunked(body: io.BufferedIOBase) -> bytes:
    """The data of a body in pieces: HTTP's own, or S3's signed ones, `aws-chunked`."""
    data = b""
    while size := int(body.readline().partition(b";")[0], 16):
        data += body.read(size)
        body.readline()
    while body.readline().strip():
        pass  # trailers
    return data


class _ObjectServer(ThreadingHTTPServer):
    """Its objects, by bucket and key, and the parts of uploads that are not complete."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ObjectStore)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}


@pytest.fixture
def object_server() -> Iterator[_ObjectServer]:
    """A simulated S3."""
    server = _ObjectServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join(30)
    server.server_close()
