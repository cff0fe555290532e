"""Fake bookies, and a seeded simulation of BookKeeper's protocol in virtual time."""
