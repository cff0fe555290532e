"""Telling what a signal handler raises from what the disk answers.

A handler may raise any exception in the main thread, also an OSError such as TimeoutError, and also
in the middle of a call to the operating system. It says nothing about the disk then.
"""

from __future__ import annotations

_PACKAGE = __name__.partition(".")[0] + "."


def is_of_handler(error: BaseException) -> bool:
    """Whether an error that left one of the store's calls was raised by a signal handler.

    It goes by the function that raised: a handler is not of this package, what calls the operating
    system is. An engine's own code outside of this package counts as a handler, too.
    """
    raised = error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    if raised is None:
        return False
    return not str(raised.tb_frame.f_globals.get("__name__", "")).startswith(_PACKAGE)
