"""Iceberg tables in an object store, reached by the catalog's properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsemark.pipeline.errors import OptionError
from pulsemark.pipeline.offload import IcebergTarget, verify_offload

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
    given: dict[str, str] = {}
    set_options = spark.options

    def options(**named: str) -> Any:
        given.update(named)
        return set_options(**named)

    spark.options = options
    run.copy(folder, _table(object_server, tmp_path), spark=spark)
    showing = [name for name, value in given.items() if "s3cret" in value]
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
