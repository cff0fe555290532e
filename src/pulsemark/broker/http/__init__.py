"""The broker's HTTP side: lookup, administration, metrics.

Imported with the first HTTP connection only. h11 parses, `connection` is its asyncio shell,
`routing` finds the handler, the other modules are the handlers by subject.
"""
