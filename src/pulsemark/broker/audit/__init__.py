"""The broker's own audit: counted behind the log's end, kept over restarts, asked for by clients."""
