"""The endpoint for Kafka's clients: the same topics, read and written by Kafka's protocol.

A partition's offset is the index in the prefix. An entry holds one set of records, as the client
sent it. The endpoint is a listener of the broker's process (`kafka_port`). It stands below the
broker and knows it only through `ports`; `broker.kafka_bridge` implements that interface.

This package imports kafka-python only in `wire`, and the broker imports this package only if a port
is configured.
"""
