"""Cleaning by the broker's time: expiry, retention, compaction, and when each of them runs."""
