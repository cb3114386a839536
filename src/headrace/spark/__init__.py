"""Share groups in Structured Streaming: the source `headrace`, and what acknowledges its records.

from headrace.spark import acknowledge, each_record, register

register(spark)
flights = spark.readStream.format("headrace").option("share.group.id", "delays")...
"""

from headrace.spark.accepted import accepted
from headrace.spark.acknowledge import acknowledge
from headrace.spark.batch import Batch
from headrace.spark.dead_letters import Redriven, dead_letters, redrive
from headrace.spark.isolation.batches import Misuse, isolate
from headrace.spark.isolation.outcomes import Reject, Release, WorkerDied
from headrace.spark.isolation.records import IncomingRecord, each_record
from headrace.spark.isolation.udf import isolated_udf
from headrace.spark.jvm import JavaError, ensure_java, local_session
from headrace.spark.options import OptionError
from headrace.spark.progress import Counts, Progress, ProgressLog, progress
from headrace.spark.queue.redriven import redrive_topic
from headrace.spark.source import HeadraceDataSource, register

__all__ = [
    "Batch",
    "Counts",
    "HeadraceDataSource",
    "IncomingRecord",
    "JavaError",
    "Misuse",
    "OptionError",
    "Progress",
    "ProgressLog",
    "Redriven",
    "Reject",
    "Release",
    "WorkerDied",
    "accepted",
    "acknowledge",
    "dead_letters",
    "each_record",
    "ensure_java",
    "isolate",
    "isolated_udf",
    "local_session",
    "progress",
    "redrive",
    "redrive_topic",
    "register",
]
