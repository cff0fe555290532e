"""The engine in memory: ledgers that live as long as their `MemoryFolder`."""
