"""Places: paths and URIs, whole files or none, also where pyarrow or fsspec reaches them."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import IO, Any

import pytest

from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.offload import IcebergTarget, verify_offload
from pulsemark.pipeline.offload.places import (
    LocalPlace,
    file_checksum,
    place_of,
    read_bytes,
    write_bytes,
)


@pytest.mark.parametrize("kind", ["path", "uri", "fsspec"])
def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, kind: str) -> None:
    """Below new folders with odd names; a failing write leaves the old file and nothing else."""
    names = {
        "path": str(tmp_path / "a b%20ü#?"),
        "uri": (tmp_path / "a b%20ü#?").as_uri(),
        "fsspec": f"memory://{tmp_path.name}/a",
    }
    place = place_of(names[kind])
    assert place_of(place.uri).names("x") == []
    write_bytes(place, "x/y=%2F/z", b"one")
    assert read_bytes(place_of(place.uri), "x/y=%2F/z") == b"one"

    def fill(file: IO[bytes]) -> None:
        file.write(b"half of a")
        raise OSError(28, os.strerror(28))

    with pytest.raises(OSError, match="No space left"):
        place.write("x/y=%2F/other", fill)
    assert place.names("x/y=%2F") == ["z"]
    assert file_checksum(place, "x/y=%2F/z")[0] == 3
    place.remove("x/y=%2F/z")
    place.remove("x/y=%2F/z")
    with pytest.raises(FileNotFoundError):
        place.open("x/y=%2F/z")


@pytest.mark.parametrize("name", ["nope://x", "file://elsewhere/x", "s3:/x://"])
def test_what_is_no_place_is_refused(name: str) -> None:
    """Unknown schemes, and other hosts' files."""
    with pytest.raises(OptionError, match="option target"):
        place_of(name)


def test_an_offload_without_locks(
    folder: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an object store: nothing is noted or removed, and a repeated run adds nothing."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=2)
    uri = f"memory://{tmp_path.name}/out"
    with pytest.raises(KeyboardInterrupt):
        run.copy(folder, uri, files_before_kill=1)
    done = run.copy(folder, uri)
    assert done.rows == len(topic.rows)
    assert run.copy(folder, uri).files == ()
    assert all(check.good for check in verify_offload(folder.path, uri))
    assert not isinstance(place_of(uri), LocalPlace)


pytestmark = pytest.mark.timeout(100)


@pytest.fixture(autouse=True)
def no_credentials_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the machine has, only the catalog's properties lead to the store."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


def _table(server: Any, tmp_path: Path, user: str = "somebody") -> IcebergTarget:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": "s3://bucket/warehouse",
        "s3.endpoint": f"http://127.0.0.1:{server.server_port}",
        "s3.access-key-id": user,
        "s3.secret-access-key": "s3cret",
        "s3.region": "us-east-1",
    }
    return IcebergTarget("archive.orders", "tests", properties)


def test_driver_and_workers_reach_the_store_by_the_catalogs_properties(
    folder: Any, run: Any, tmp_path: Path, object_server: Any
) -> None:
    """A killed offload, repeated, has every message once, and is verified from the store."""
    topic = folder.topic("a")
    run.fill(topic, folder, hours=2)
    with pytest.raises(KeyboardInterrupt):
        run.copy(folder, _table(object_server, tmp_path), files_before_kill=1)
    assert run.copy(folder, _table(object_server, tmp_path)).rows == len(topic.rows)
    assert run.copy(folder, _table(object_server, tmp_path)).files == ()
    table = _table(object_server, tmp_path)
    assert run.rows_in(table) == run.truth(topic)
    assert all(check.good for check in verify_offload(folder.path, table))
    assert any(name.endswith(".parquet") for name in object_server.objects)


def test_the_secret_is_in_an_option_that_spark_hides(
    folder: Any, run: Any, tmp_path: Path, object_server: Any
) -> None:
    """Spark's plans, logs and pages show options, but not those with `secret` in their names."""
    run.fill(folder.topic("a"), folder, hours=1)
    spark = folder.in_process(None)
    given: dict[str, bytes] = {}
    set_option = spark.option

    def option(name: str, value: str) -> Any:
        given[name] = base64.b64decode(value)
        return set_option(name, value)

    spark.option = option
    run.copy(folder, _table(object_server, tmp_path), spark=spark)
    showing = [name for name, value in given.items() if b"s3cret" in value]
    assert showing
    assert all("secret" in name.lower() for name in showing)


def test_a_store_that_refuses_is_named(
    folder: Any, run: Any, tmp_path: Path, object_server: Any
) -> None:
    """Wrong credentials: one line with the table, and nothing is in the store."""
    run.fill(folder.topic("a"), folder, hours=1)
    with pytest.raises(OptionError, match=r"option table = 'archive\.orders': cannot be made"):
        run.copy(folder, _table(object_server, tmp_path, user="other"))
    assert not object_server.objects
