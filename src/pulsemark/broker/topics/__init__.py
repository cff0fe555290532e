"""Topics, their producers, schemas and policies."""
