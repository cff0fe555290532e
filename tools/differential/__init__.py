"""The same raw commands and REST calls to two brokers, the answers compared field by field."""
