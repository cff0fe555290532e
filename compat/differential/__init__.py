"""Sends the same raw commands and REST calls to two brokers and compares the answers."""
