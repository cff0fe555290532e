"""Group commit over any engine: what waits, what is committed together, who is told."""
