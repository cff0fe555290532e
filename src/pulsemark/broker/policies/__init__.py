"""Policies: their descriptions, and their values at the levels broker, namespace and topic."""
