"""The storage engine on local files."""
