"""Cleaning of topics by the broker's time: expiry, retention and compaction."""
