"""The broker's HTTP interface: lookup, administration, metrics.

It is imported with the first HTTP connection. h11 parses requests, `connection` connects h11 with
asyncio, `routing` finds the handler, and the other modules have the handlers, by subject.
"""
