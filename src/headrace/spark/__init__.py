"""Share groups in Structured Streaming: the source `headrace`, and what acknowledges its records.

from headrace.spark import acknowledge, each_record, register

register(spark)
flights = spark.readStream.format("headrace").option("share.group.id", "delays")...
"""

from headrace.spark.acknowledge import acknowledge
from headrace.spark.isolate import IncomingRecord, Reject, Release, each_record, isolate
from headrace.spark.jvm import JavaError, ensure_java, local_session
from headrace.spark.options import OptionError
from headrace.spark.progress import Counts, Progress, ProgressLog, progress
from headrace.spark.source import HeadraceDataSource, register

__all__ = [
    "Counts",
    "HeadraceDataSource",
    "IncomingRecord",
    "JavaError",
    "OptionError",
    "Progress",
    "ProgressLog",
    "Reject",
    "Release",
    "acknowledge",
    "each_record",
    "ensure_java",
    "isolate",
    "local_session",
    "progress",
    "register",
]
