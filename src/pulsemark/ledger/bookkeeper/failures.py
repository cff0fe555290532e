"""What the client raises when bookies or ZooKeeper fail."""

from ...coordination import CoordinationError
from .client.errors import BookKeeperError

FAILURES = (BookKeeperError, CoordinationError)
