"""The catalog: the data of a folder that seldom changes."""
