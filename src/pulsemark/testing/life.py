"""The life of a test's broker, in a thread or in a process.

It is started, stopped, killed and started again; its data is kept until it is closed. A folder that
it was not given is made by the first start, and removed by `close`, or at once if that start fails.
So a broker that never ran leaves nothing, whether or not it is closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

__all__ = ["BrokerLife"]


class BrokerLife(ABC):
    """Starting again, closing, and the temporary folder."""

    _temporary: TemporaryDirectory[str] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start, and return when the broker serves."""

    @abstractmethod
    def stop(self) -> None:
        """Stop in order; the data is kept."""

    def restart(self) -> None:
        """Stop in order and start again, on the same ports and with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop in order, and remove a temporary data folder. A second call does nothing."""
        try:
            self.stop()
        finally:
            self._remove_folder()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        """The temporary folder during a start: made by the first one, and gone if that fails."""
        is_new = self._temporary is None
        if self._temporary is None:
            self._temporary = TemporaryDirectory(prefix="pulsemark-", ignore_cleanup_errors=True)
        try:
            yield Path(self._temporary.name)
        except BaseException:
            if is_new:
                self._remove_folder()
            raise

    def _remove_folder(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
