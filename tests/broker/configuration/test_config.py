"""Settings are checked when a configuration is made, and errors name the setting."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from pulsemark.broker import BrokerConfig, ConfigError
from pulsemark.metadata import StamperChain


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", -1),
        ("port", 65_536),
        ("port", None),
        ("port", "6650"),
        ("port", True),
        ("http_port", 70_000),
        ("grpc_port", -5),
        ("host", ""),
        ("host", "a b"),
        ("cluster", "a/b"),
        ("cluster", None),
        ("data_dir", 5),
        ("data_dir", Path("a\0b")),
        ("data_dir", "a\0b"),
        ("host", "a\0b"),
        ("clock", lambda: 5),
        ("stampers", (5,)),
        ("stampers", (1,)),
        ("max_message_size_bytes", 0),
        ("max_message_size_bytes", 1000),
        ("keep_alive_interval_ms", 0),
        ("handshake_timeout_ms", -1),
        ("max_connections", 0),
        ("dispatch_round_bytes", 1.5),
        ("active_consumer_failover_delay_ms", -1),
        ("shutdown_timeout_ms", False),
    ],
)
def test_a_wrong_value_is_named(field, value):
    """ConfigError carries field and value, and is a ValueError."""
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(**{field: value})
    assert (field, value) == (caught.value.field, caught.value.value)
    assert field in str(caught.value)
    assert caught.value.reason
    assert isinstance(caught.value, ValueError)


def test_the_defaults_are_pulsars():
    """Ports, cluster, message size, keep-alive and behaviour of a standalone broker."""
    config = BrokerConfig()
    assert (config.port, config.http_port, config.grpc_port) == (6650, 8080, None)
    assert (config.cluster, config.max_message_size_bytes) == ("standalone", 5 * 1024 * 1024)
    assert config.keep_alive_interval_ms == 30_000
    assert not config.exposing_broker_entry_metadata_to_client_enabled
    assert not config.acknowledgment_at_batch_index_level_enabled
    assert config.stampers == ("broker-time", "index")


def test_what_may_be_left_out_or_zero():
    """No HTTP, no gRPC, free ports, no stampers, no failover delay."""
    config = BrokerConfig(
        port=0,
        http_port=None,
        grpc_port=0,
        stampers=(),
        active_consumer_failover_delay_ms=0,
        data_dir=Path("x"),
    )
    assert config == replace(config)
    with pytest.raises(FrozenInstanceError):
        config.port = 1  # type: ignore[misc]


def test_stampers_in_one_line() -> None:
    """A line as on the command line is the same as a tuple of names."""
    line = "broker-time,index,property-tags:region,app"
    expected = ("broker-time", "index", "property-tags:region,app")
    assert BrokerConfig(stampers=line).stampers == expected
    assert StamperChain.from_names(line).names == StamperChain.from_names(expected).names


def test_paths_of_any_kind(tmp_path: Path) -> None:
    """Text and any `os.PathLike` become a path; anything else is refused with the field's name."""

    class Place:
        def __fspath__(self) -> str:
            return str(tmp_path)

    assert BrokerConfig(data_dir=str(tmp_path)).data_dir == tmp_path
    assert BrokerConfig(data_dir=Place()).data_dir == tmp_path
    assert BrokerConfig(grpc_control_token_file=Place()).grpc_control_token_file == tmp_path
    with pytest.raises(ConfigError, match="data_dir"):
        BrokerConfig(data_dir=5)  # type: ignore[arg-type]
