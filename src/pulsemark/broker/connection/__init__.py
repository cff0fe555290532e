"""A client's connection: reading, writing, limits, its end."""
