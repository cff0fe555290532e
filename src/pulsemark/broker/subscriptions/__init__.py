"""Subscriptions: their consumers, and how entries reach these."""
