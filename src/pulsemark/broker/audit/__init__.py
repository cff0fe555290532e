"""The broker's own audit: counted after the commit, kept over restarts, asked for by clients."""
