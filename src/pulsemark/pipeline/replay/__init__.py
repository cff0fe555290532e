"""The job `replay`: publish a range of a folder's entries again, to another topic or broker.

options      what a user can choose, the function that maps messages, and what is refused
checkpoint   the plan of a replay, and how far it came
outgoing     the entries that are published: as they were, or mapped by a function
stream       the workers' part: one source topic, from its place in the checkpoint to its end
job          the driver's part
"""

from .job import ReplayResult, TopicResult, replay
from .options import ReplayMessage, ReplayOptions

__all__ = ["ReplayMessage", "ReplayOptions", "ReplayResult", "TopicResult", "replay"]
