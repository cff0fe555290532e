"""From stored entries to Arrow, column by column.

    runs         reads many entries of a topic at a time, and checks every checksum
    entries      EntryTable: the entries' fields that need no decoding
    headers      Headers: producers' message metadata
    payloads     Opened: decompressed payloads, with batches split into messages
    messages     Messages: one row per message
    batches      Arrow record batches

Each module uses only those above it. ``protoscan`` and ``gather`` make it fast: the first reads
fields of many protobuf messages at once. The second copies spans into Arrow arrays.
"""
