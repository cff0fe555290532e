"""Protocol buffer sources (*.proto) and the code generated from them (*_pb2.py, *.pyi).

Generated modules import each other by full name (`from pulsemark.proto import ...`), because
protoc cannot write relative imports. A second import of this folder under another name would
register every message twice in protobuf's descriptor pool. protobuf's own error for that
("duplicate symbol") names neither the cause nor the cure. So the check below fails first, with an
error that names both.

Regenerate with `python tools/generate_proto.py` (`make proto`); never edit generated files.
"""

if __name__ != "pulsemark.proto":
    raise ImportError(
        f"this package must be imported as 'pulsemark.proto', not as {__name__!r}: "
        "the links at the repository's root are for reading, not for importing",
        name=__name__,
        path=__file__,
    )
