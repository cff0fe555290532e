"""The catalog: what of a folder changes seldom."""
