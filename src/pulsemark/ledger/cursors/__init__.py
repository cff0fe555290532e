"""Cursors: the durable positions of subscriptions in a topic."""
