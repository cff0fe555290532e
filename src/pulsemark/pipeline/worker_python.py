"""The Python that Spark starts for its workers, without the archive of pyspark's sources.

Spark puts `pyspark.zip` first on the path of each Python that it starts. A module out of an archive
of sources is compiled anew each time: 0.8 s of processor time for each process, and a session has
half a dozen of them. The package that is installed has been compiled long ago. So the workers get a
script that takes the archive off the path and becomes this Python.
"""

from __future__ import annotations

import atexit
import os
import shlex
import sys
import tempfile
from functools import cache
from pathlib import Path

_SCRIPT = """\
#!/bin/sh
PYTHONPATH="${{PYTHONPATH#*/pyspark.zip:}}"
case "$PYTHONPATH" in */py4j-*-src.zip:*) PYTHONPATH="${{PYTHONPATH#*-src.zip:}}";; esac
export PYTHONPATH
exec {python} "$@"
"""


@cache
def worker_python() -> str:
    """The path of the script, which exists until this process ends.

    This Python itself, if the machine has no shell or runs no program in its temporary folder.
    """
    if not os.access("/bin/sh", os.X_OK):
        return sys.executable
    descriptor, name = tempfile.mkstemp(prefix="pulsemark-python-")
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    with os.fdopen(descriptor, "w") as file:
        file.write(_SCRIPT.format(python=shlex.quote(sys.executable)))
    path.chmod(0o700)
    return name if os.access(name, os.X_OK) else sys.executable
