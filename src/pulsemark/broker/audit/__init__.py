"""The broker's own audit: entries are counted after the commit, and counts survive restarts."""
