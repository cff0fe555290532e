"""Subscriptions' places in a topic, durable."""
