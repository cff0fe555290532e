"""The endpoint for Kafka's clients: the same topics, read and written by Kafka's protocol.

A partition's offset is the index in the prefix. An entry holds one set of records, as the client
sent it. The endpoint is a listener of the broker's process (`kafka_port`). It stands below the
broker and knows it only through `ports`; `broker.kafka_bridge` implements that interface.

`records` has Kafka's record formats: what a producer sends, what is stored, what a consumer gets.
kafka-python's codecs are used by `wire` and `handlers`; the broker imports these only if a port is
configured.
"""
