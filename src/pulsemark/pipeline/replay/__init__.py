"""The job `replay`: publish a range of a folder's entries again, to another topic or broker.

options      what a user can choose, and what is refused
checkpoint   the plan of a replay, and how far it came
outgoing     the entries that are published: as they were, or mapped by a function
function     the user's function, and the messages that it gets
target       one topic of the target: what it has already, and publishing
stream       one source topic, from its place in the checkpoint to its end
source       Spark's tasks
job          the driver's part
"""

from .function import ReplayMessage
from .job import ReplayResult, TopicResult, replay
from .options import ReplayOptions

__all__ = ["ReplayMessage", "ReplayOptions", "ReplayResult", "TopicResult", "replay"]
