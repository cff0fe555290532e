"""The broker's counters, statistics and metrics."""
