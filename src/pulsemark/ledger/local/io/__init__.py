"""Files of the operating system: opening, syncing, locking, keeping space back."""
