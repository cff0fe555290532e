"""The broker's statistics and metrics, made from its counters on request."""
