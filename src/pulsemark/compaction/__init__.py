"""Topic compaction: the latest message of each key, in a view next to the log."""
