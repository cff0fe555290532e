"""A client's connection: accepting, reading, writing, limits and closing."""
