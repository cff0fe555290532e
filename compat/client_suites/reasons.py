"""Why tests of the clients' suites cannot pass: what they need and pulsemark does not have.

By suite: a regular expression for the test's name, and the reason.
"""

from __future__ import annotations

TLS = "starts a Kafka of its own with TLS"
SASL = "starts a Kafka of its own with SASL"
BROKER_TIME = "finds offsets by the producers' times; here the broker's time counts"
NODE_0 = "names the broker 0; this one is node 1"

REASONS: dict[str, dict[str, str]] = {
    "kafka-python": {
        r"test_sasl_integration": SASL,
        r"test_ssl_integration": TLS,
        r"_acls$": "needs ACL requests",
        r"::test_describe_configs_broker_resource": "changes settings of the broker",
        r"::test_create_partitions$": NODE_0,
        r"::test_kafka_consumer_offsets_for_time$": BROKER_TIME,
        r"::test_kafka_consumer_offsets_search_many_partitions$": BROKER_TIME,
    },
    "confluent-kafka": {
        r"test_describe_operations": SASL,
        r"test_user_scram_credentials": "needs SCRAM credentials (KIP-554)",
        r"::test_basic_operations$": "needs ACL requests",
        r"::test_incremental_alter_configs$": "expects min.insync.replicas from a Kafka 4.1",
        r"::test_list_offsets$": BROKER_TIME,
        r"consumer_upgrade_downgrade": "needs the consumer protocol of KIP-848",
    },
    "aiokafka": {
        r"test_sasl.py": SASL,
        r"test_ssl_consume$|test_producer_ssl$|test_create_ssl_context$": TLS,
        r"::test_exclude_internal_topics$": "expects the topic __consumer_offsets",
        r"::test_sender__handler_base_do$": NODE_0,
        r"::test_kafka_consumer_offsets_search_many_partitions$": BROKER_TIME,
        r"::test_offsets_for_times_single$": BROKER_TIME,
    },
}
