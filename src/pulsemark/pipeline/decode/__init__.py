"""From stored entries to Arrow, column by column.

    runs         entries of a topic, many at a time, every checksum checked
    entries      what is known of them without opening: EntryTable
    headers      producers' message metadata: Headers
    payloads     decompressed, batches taken apart: Opened
    messages     one row a message: Messages
    batches      Arrow record batches

Each uses only those above it. ``protoscan`` and ``gather`` are the two tools that make it quick:
reading fields of many protobuf messages at once, and copying spans into Arrow arrays.
"""
