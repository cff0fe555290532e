"""Topics: which there are, who writes to them, their schemas and policies."""
