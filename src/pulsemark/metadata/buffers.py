"""What the codecs of this package read: bytes in any of Python's three forms.

Every function takes a `Buffer` of single bytes, contiguous and one-dimensional, and hands parts
of it on as memoryviews of the very same memory. Nothing here copies a payload.
"""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
