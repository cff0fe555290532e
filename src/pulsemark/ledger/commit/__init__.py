"""Group commit over any engine: what is pending, what is committed together, who is notified."""
