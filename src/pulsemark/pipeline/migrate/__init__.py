"""The job `migrate`: a new data folder, with or without stamps, from a folder or from Pulsar.

entry_format   what happens to an entry's prefix
segments       writing the target's segments
staging        what is being made: the plan, how far it is, and the step that makes it visible
folder_topics  topics of a data folder
pulsar_topics  topics of a broker
source         Spark's tasks
job            the driver's part
"""

from .job import MigrateResult, migrate

__all__ = ["MigrateResult", "migrate"]
