"""Making entries durable: group commit, journal, checkpoint."""
