"""Subscriptions, their consumers, and the dispatch of entries to them."""
