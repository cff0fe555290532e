"""Values by a topic's schema: Avro, JSON and Protobuf, as Arrow's and Spark's types.

    form       which schema the values of a read are decoded by
    registry   a schema registry's schemas, and values in its format
    protobuf   Protobuf's values, in Avro's words
    decoding   Avro's and JSON's values, and the types of all
    types      two of Arrow's types as one

Each module uses only those below it.
"""
