"""The type of the codecs' input: bytes in any of Python's three forms.

Every function takes a `Buffer` of single bytes, contiguous and one-dimensional. Parts of it are
returned as memoryviews that share its memory. No function in this package copies a payload.
"""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
