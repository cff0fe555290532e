"""Segments: files that hold a run of entries each, and their index files."""
