"""Where a read's topics are: a data folder, or BookKeeper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..extras import install_command
from ..ledger import FolderReader
from ..ledger.bookkeeper.address import StoreAddress, StoreAddressError, is_store_address
from .errors import OptionError
from .option_values import Given, parse_path

if TYPE_CHECKING:
    from ..ledger.bookkeeper.reader import BookKeeperReader

TopicsReader: TypeAlias = "FolderReader | BookKeeperReader"


def place_of(given: Given) -> tuple[Path, StoreAddress | None]:
    """The data folder, or the address of a store in BookKeeper.

    The option ``path`` takes both; ``store`` only an address.

    Raises:
        OptionError: none of the two is given, or both, or what is given is malformed.
    """
    given.only_one("path", "store")
    store = given.get("store", _parse_store, None)
    if store is None:
        place = given.required("path", _parse_place)
        if isinstance(place, Path):
            return place, None
        store = place
    given.refuse(("valueSchema",), "needs a folder: schemas are not read from a store")
    given.refuse(("maxBytesPerTrigger",), "needs a folder: a store does not tell sizes")
    return Path(str(store)), store  # in errors of jobs that read folders only


def _parse_place(text: str) -> Path | StoreAddress:
    return _parse_store(text.strip()) if is_store_address(text.strip()) else parse_path(text)


def _parse_store(text: str) -> StoreAddress:
    try:
        return StoreAddress.parse(text.strip())
    except StoreAddressError as error:
        raise ValueError(error.reason) from error


def opened(path: Path, store: StoreAddress | None) -> TopicsReader:
    """A reader of a place; close it after use. Raises ForeignFolderError, CatalogError."""
    return FolderReader(path) if store is None else opened_store(store)


def opened_store(store: StoreAddress) -> BookKeeperReader:
    """A reader of a store in BookKeeper. Raises CatalogError, OptionError."""
    try:
        from ..ledger.bookkeeper.reader import BookKeeperReader
    except ImportError as error:
        reason = f"needs {install_command('bookkeeper')}: {error}"
        raise OptionError("store", str(store), reason) from error
    return BookKeeperReader.open(str(store))
