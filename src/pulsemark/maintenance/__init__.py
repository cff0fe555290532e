"""Maintenance of data folders: verifying them, and rebuilding a lost catalog."""
