"""Ledgers in Apache BookKeeper."""
