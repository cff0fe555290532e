"""The settings of a broker."""
