"""The job `replay`: publish a range of a folder's entries again, to another topic or broker.

options      what a user can choose, and what is refused
checkpoint   the plan of a replay, and how far it came
stream       the workers' part: one source topic, from its place in the checkpoint to its end
job          the driver's part
"""

from .job import ReplayResult, TopicResult, replay
from .options import ReplayOptions

__all__ = ["ReplayOptions", "ReplayResult", "TopicResult", "replay"]
