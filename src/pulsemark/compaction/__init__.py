"""Topic compaction: the latest message of each key, in a view next to the log.

compact(topic)                                    make a new view
for entry in entries_of(compacted_log(topic)):    read the topic's compacted form
"""

from ..ledger.errors import CompactionFailedError, CompactionRunningError
from .compacted_log import CompactedLog
from .compaction import CompactionReport, compact, estimate
from .current_view import claim_kept, compacted_log
from .keys import Limits

__all__ = [
    "CompactedLog",
    "CompactionFailedError",
    "CompactionReport",
    "CompactionRunningError",
    "Limits",
    "claim_kept",
    "compact",
    "compacted_log",
    "estimate",
]
