"""Topic compaction: the latest message of each key, in a view beside the log."""
