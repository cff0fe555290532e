"""Configuration files: Pulsar's settings, our own, and unknown ones."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from pulsemark.broker import BrokerConfig, ConfigError
from pulsemark.broker.configuration.bookkeeper_config import BookKeeperConfig
from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.configuration.settings import (
    LIMITS,
    PROTECTIONS,
    SettingError,
    parse_settings,
    pulsar_defaults,
    runtime_settings,
)
from pulsemark.broker.configuration.sources import read_properties
from pulsemark.ledger import StoreOptions
from pulsemark.testing import SettableClock
from tests.support.certificates import Certificates

TIME = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
INDEX = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
CLOCK = SettableClock()

# Lines as Pulsar's own files have them.
PULSARS_FILE = """
### --- General broker settings --- ###
metadataStoreUrl=
brokerServicePort=6651
webServicePort=8081
bindAddress=0.0.0.0
advertisedAddress=
clusterName=standalone
numIOThreads=
backlogQuotaDefaultLimitGB=10
maxUnackedMessagesPerConsumer=0
maxMessagePublishBufferSizeInMB=
httpMaxRequestHeaderSize = 8192
authenticationEnabled=false
brokerServicePortTls=
managedLedgerMaxLedgerRolloverTimeMinutes=240
keepAliveIntervalSeconds=30
"""


def parse(text):
    """What a file with this text says."""
    return parse_settings(read_properties(text))


def config_of(text, **overrides):
    """The configuration it makes, with a clock that can be compared."""
    return parse(text).config(clock=CLOCK, **overrides)


def test_a_file_of_pulsars_is_taken_as_it_is():
    """Known settings count, empty ones are defaults, unknown ones are listed and ignored."""
    found = parse(PULSARS_FILE)
    assert found.ignored == (
        "numIOThreads",
        "httpMaxRequestHeaderSize",
    )
    assert found.config(clock=CLOCK) == BrokerConfig(
        clock=CLOCK,
        port=6651,
        http_port=8081,
        host="0.0.0.0",
        max_unacked_messages_per_consumer=2**31 - 1,
        backlog_quota_default_limit_gb=10,
    )


@pytest.mark.parametrize(
    ("value", "stampers"),
    [
        ("", ()),
        (f"{TIME},{INDEX}", ("broker-time", "index")),
        (f" {INDEX} , {INDEX},", ("index",)),
        (TIME, ("broker-time",)),
    ],
)
def test_pulsars_interceptors_are_the_stampers_of_the_same_fields(value, stampers):
    """By class name, as a list; empty is off, as it is in Pulsar; absent is our default."""
    assert config_of(f"brokerEntryMetadataInterceptors={value}").stampers == stampers
    assert config_of("").stampers == ("broker-time", "index")


def test_our_own_list_of_stampers_wins():
    """It may name any stamper; where both are given the order of lines does not matter."""
    for lines in (
        ["pulsemarkStampers=index,property-tags:a,b", "brokerEntryMetadataInterceptors="],
        ["brokerEntryMetadataInterceptors=", "pulsemarkStampers=index,property-tags:a,b"],
    ):
        assert config_of("\n".join(lines)).stampers == ("index", "property-tags:a,b")
    assert config_of("pulsemarkStampers=").stampers == ()


def test_our_own_settings():
    """`pulsemark` and the field's name, also of the store's options."""
    config = config_of(
        "pulsemarkDataDir=/somewhere else\npulsemarkGrpcPort=0\npulsemarkSyncIntervalMs=20\n"
        "pulsemarkHandshakeTimeoutMs=5\npulsemarkSegmentSizeBytes=1000000\npulsemarkFdLimit=\n"
        "exposingBrokerEntryMetadataToClientEnabled=TRUE\nwebServicePort="
    )
    assert (config.data_dir, config.grpc_port) == (Path("/somewhere else"), 0)
    assert (config.handshake_timeout_ms, config.http_port) == (5, None)
    assert config.store_options == StoreOptions(sync_interval_ms=20, segment_size_bytes=1_000_000)
    assert config.exposing_broker_entry_metadata_to_client_enabled


def test_every_field_can_be_set_by_exactly_one_name():
    """Except clock and memory, which no file can hold; the sync interval is the store's."""
    keys = runtime_settings(BrokerConfig())
    assert len(keys) == len(set(keys))
    of_broker = {spec.name for spec in fields(BrokerConfig)} - {
        *("clock", "memory", "store_options", "security", "bookkeeper", "sync_interval_ms")
    }
    of_store = {spec.name for spec in fields(StoreOptions)}
    of_security = {spec.name for spec in fields(SecurityConfig)}
    of_bookkeeper = {spec.name for spec in fields(BookKeeperConfig)}
    # The stampers have two names: Pulsar's, and ours for those that Pulsar does not have.
    others = (of_store, of_security, of_bookkeeper)
    assert len(keys) == len(of_broker) + sum(map(len, others)) + 1


def test_a_store_in_bookkeeper():
    """Pulsar's address and quorums are taken; they must fit, and the store has one place."""
    text = """
metadataStoreUrl=zk:zk1:2181,zk2:2181/pulsar
managedLedgerDefaultEnsembleSize=5
managedLedgerDefaultWriteQuorum=2
managedLedgerDefaultAckQuorum=2
"""
    found = config_of(text).bookkeeper
    assert found.store_address == "zk://zk1:2181,zk2:2181/pulsar/ledgers"
    assert (found.ensemble_size, found.write_quorum_size, found.ack_quorum_size) == (5, 2, 2)
    with pytest.raises(SettingError, match="metadataStoreUrl"):
        parse("metadataStoreUrl=etcd:http://x")
    with pytest.raises(SettingError, match="metadataStoreUrl"):
        parse("metadataStoreUrl=zk:nowhere")
    with pytest.raises(ConfigError, match="ack quorum"):
        config_of("managedLedgerDefaultAckQuorum=4")
    with pytest.raises(ConfigError, match="BookKeeper"):
        config_of(text, data_dir=Path("/d"))
    with pytest.raises(ConfigError, match="ensemble_size"):
        BookKeeperConfig(ensemble_size="3")  # type: ignore[arg-type]


def test_tls_to_bookies(tmp_path):
    """Pulsar's names are taken; what cannot be is refused at the start, and off means off."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    Certificates(tmp_path).self_signed("broker", key.name, certificate.name)
    files = f"""
bookkeeperTLSKeyFilePath={key}
bookkeeperTLSCertificateFilePath={certificate}
bookkeeperTLSTrustCertsFilePath={certificate}
bookkeeperTLSKeyFileType=PEM
bookkeeperTLSTrustCertTypes=PEM
bookkeeperTLSProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory
bookkeeperTLSKeyStorePasswordPath=
bookkeeperTlsCertFilesRefreshDurationSeconds=60
bookkeeper_tlsHostnameVerificationEnabled=true
"""
    on = "bookkeeperTLSClientAuthentication=true\n"
    assert config_of(files).bookkeeper.bookie_tls() is None
    tls = config_of(on + files).bookkeeper.bookie_tls()
    assert (tls.key_file, tls.trust_certs_file) == (str(key), str(certificate))
    assert (tls.check_hostname, tls.refresh_s, tls.key_password_file) == (True, 60, None)
    for wrong, said in (
        ("bookkeeperTLSKeyFileType=JKS", "PEM"),
        ("bookkeeperTLSTrustCertTypes=PKCS12", "PEM"),
        ("bookkeeperTLSProviderFactoryClass=com.example.Factory", "TLSContextFactory"),
        ("bookkeeperTLSKeyFilePath=", "bookkeeper_tls_key_file"),
        (f"bookkeeperTLSTrustCertsFilePath={tmp_path}/absent", "absent"),
        (f"bookkeeperTLSKeyFilePath={certificate}", "certificate"),
        ("bookkeeperTlsCertFilesRefreshDurationSeconds=-1", "from 0"),
    ):
        name = wrong.partition("=")[0]
        kept = "\n".join(one for one in files.splitlines() if not one.startswith(f"{name}="))
        with pytest.raises((ConfigError, SettingError), match=said):
            config_of(f"{on}{kept}\n{wrong}\n")


@pytest.mark.parametrize(
    "config",
    [
        BrokerConfig(clock=CLOCK),
        BrokerConfig(
            clock=CLOCK,
            data_dir=Path("/d"),
            host="::1",
            http_port=None,
            grpc_port=7,
            advertised_address="example.org",
            stampers=("property-tags:a,b", "index"),
            keep_alive_interval_ms=1_500,
            store_options=StoreOptions(sync_interval_ms=5, fd_limit=99, ledger_age_ms=120_000),
        ),
        BrokerConfig(clock=CLOCK, stampers=()),
    ],
)
def test_what_is_shown_can_be_read_again(config):
    """A running broker's settings, put into a file, make the same broker."""
    shown = runtime_settings(config)
    again = parse("\n".join(f"{key}={value}" for key, value in shown.items()))
    assert again.ignored == ()
    assert again.config(clock=CLOCK) == config


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("brokerServicePort=6650a", "whole number"),
        ("brokerServicePort=70000", "65535"),
        ("webServicePort=٣", "whole number"),
        ("maxMessageSize=5 MB", "whole number"),
        ("maxMessageSize=100", "1024"),
        ("maxMessageSize=9999999999999999999999", "whole number"),
        ("exposingBrokerEntryMetadataToClientEnabled=yes", "true or false"),
        ("clusterName=a/b", "slashes"),
        ("brokerEntryMetadataInterceptors=com.example.Sundial", "com.example.Sundial"),
        ("keepAliveIntervalSeconds=0", "at least 1"),
        ("managedLedgerMaxSizePerLedgerMbytes=-1", "ledger_size_bytes"),
        ("pulsemarkSyncIntervalMs=60001", "60000"),
        ("pulsemarkSyncIntervallMs=5", "pulsemarkSyncIntervalMs"),
        ("pulsemarkFrobnicate=1", "no such setting"),
        ("pulsemarkClock=1", "no such setting"),
    ],
)
def test_an_invalid_value_is_named_with_its_key(line, named):
    """`SettingError` has the key, the value and what was expected."""
    key, _, value = line.partition("=")
    with pytest.raises(SettingError) as caught:
        parse(f"clusterName=fine\n{line}")
    assert (caught.value.key, caught.value.value) == (key, value)
    assert named in caught.value.reason
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    "line",
    [
        "authorizationProvider=com.example.Own",
        "authenticationProviders=com.example.AuthenticationProviderSasl",
        "encryptionRequireOnProducer=true",
        "tlsEnabled=true",
        "tlsEnabledWithKeyStore=true",
        "tlsKeyStore=/keys.jks",
        "tlsTrustStore=/trust.jks",
        "saslJaasClientAllowedIds=.*client.*",
        "saslJaasServerSectionName=Other",
        "saslJaasServerRoleTokenSignerSecretPath=/secret",
        "athenzDomainNames=example",
        "sslFactoryPlugin=com.example.Factory",
        "entryFilterNames=jms",
        "brokerInterceptors=audit",
        "brokerEntryPayloadProcessors=com.example.Cipher",
        "enableNonPersistentTopics=false",
        "httpRequestsLimitEnabled=true",
        "strictlyVerifySubscriptionName=True",
        "bookkeeperClientIsolationGroups=rack1",
        "maxConcurrentLookupRequest=100",
        "maxConcurrentTopicLoadRequest=4999",
        "maxSameAddressProducersPerTopic=5",
        "brokerPublisherThrottlingMaxByteRate=1000000",
        "maxUnackedMessagesPerBroker=many",
    ],
)
def test_protection_that_is_asked_for_and_not_there_stops_the_start(line):
    """The error names the setting; Pulsar's defaults of the same settings are fine."""
    with pytest.raises(SettingError) as caught:
        parse(f"{line}\nnumIOThreads=8")
    assert caught.value.key == line.partition("=")[0]
    defaults = [f"{key}={value}" for key, values in PROTECTIONS.items() for value in values]
    defaults += [f"{key}={value}" for key, pulsars in LIMITS.items() for value in (pulsars, 0, "")]
    defaults += ["maxConcurrentLookupRequest=60000", "httpMaxRequestSize=-1"]
    assert all(parse(default).ignored for default in defaults)


def test_pulsars_own_files_start_a_broker():
    """No value of the files that Pulsar ships is refused, whichever of the two has it."""
    for key, values in pulsar_defaults().items():
        for value in values:
            parse(f"{key}={value}")
    assert {*PROTECTIONS, *LIMITS} <= set(pulsar_defaults())


def test_what_stops_the_start_is_documented():
    """docs/security.md names every setting that is refused."""
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
    section = page.partition("## Settings that stop the start")[2].partition("\n## ")[0]
    assert [name for name in (*PROTECTIONS, *LIMITS) if f"`{name}`" not in section] == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("AuthenticationEnabled", "authenticationEnabled"),
        ("brokermaxconnections", "brokerMaxConnections"),
        ("BrokerInterceptors", "brokerInterceptors"),
        ("numIoThreads", "numIOThreads"),
        ("pulsemarkDatadir", "pulsemarkDataDir"),
        ("PulsemarkGrpcPort", "pulsemarkGrpcPort"),
    ],
)
def test_a_name_in_other_capitals_is_an_error(written, meant):
    """It would have no effect, so an open broker would start; the error has the right name."""
    with pytest.raises(SettingError, match=meant) as caught:
        parse(f"{written}=c2VjcmV0")
    assert caught.value.key == written
    assert "c2VjcmV0" not in str(caught.value)


def test_settings_of_security_are_pulsars():
    """Pulsar's names, lists and class names; keys that a file holds itself are never shown."""
    names = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
    config = config_of(
        "brokerServicePort=\nbrokerServicePortTls=6651\nwebServicePortTls=8443\n"
        "authenticationEnabled=true\ntlsEnabled=true\nsuperUserRoles=admin, root\n"
        f"authenticationProviders={names}Tls,{names}Token\nproxyRoles=proxy\n"
        "tokenSecretKey=data:;base64,c2VjcmV0\ntlsProtocols=TLSv1.3 TLSv1.2\n"
        "authenticationRefreshCheckSeconds=2\nanonymousUserRole="
    )
    assert config.security == SecurityConfig(
        tls_port=6651,
        http_tls_port=8443,
        authentication_enabled=True,
        authentication_providers=(f"{names}Tls", f"{names}Token"),
        super_user_roles=("admin", "root"),
        proxy_roles=("proxy",),
        token_secret_key="data:;base64,c2VjcmV0",
        tls_protocols=("TLSv1.3", "TLSv1.2"),
        authentication_refresh_check_ms=2_000,
    )
    assert config.port is None
    shown = runtime_settings(config)
    assert shown["tokenSecretKey"] == "data:***"
    assert "c2VjcmV0" not in str(shown) + repr(config)
    for value, text in (("c2VjcmV0", "data:***"), ("/keys/a", "/keys/a"), ("file:a", "file:a")):
        found = runtime_settings(config_of(f"tokenSecretKey={value}"))
        assert found["tokenSecretKey"] == text


def test_overrides_win_over_the_file():
    """Command line values override the file; wrong ones raise their own error."""
    text = "brokerServicePort=1\nbindAddress=::\npulsemarkSyncIntervalMs=50\npulsemarkFdLimit=64"
    config = config_of(text, port=2, sync_interval_ms=0)
    assert (config.port, config.host) == (2, "::")
    assert config.store_options == StoreOptions(fd_limit=64)
    with pytest.raises(ConfigError):
        config_of(text, port=-1)


def test_the_sync_interval_goes_before_the_stores():
    """Given in the broker's settings it wins, not given the store's options count; both agree."""
    options = StoreOptions(sync_interval_ms=7, fd_limit=50)
    assert BrokerConfig(store_options=options).store_options == options
    config = BrokerConfig(store_options=options, sync_interval_ms=0)
    assert config.store_options == StoreOptions(fd_limit=50)
    assert replace(config, sync_interval_ms=9).store_options.sync_interval_ms == 9
    for wrong in (-1, 60_001, True, 1.5, "5"):
        with pytest.raises(ConfigError) as caught:
            BrokerConfig(sync_interval_ms=wrong)  # type: ignore[arg-type]
        assert caught.value.field == "sync_interval_ms"
