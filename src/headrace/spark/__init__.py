"""Share groups in Structured Streaming: the source `headrace`, and what acknowledges its records.

from headrace.spark import acknowledge, each_record, register

register(spark)
flights = spark.readStream.format("headrace").option("share.group.id", "delays")...
"""

from headrace.spark.acknowledge import acknowledge
from headrace.spark.dead_letters import Redriven, dead_letters, redrive
from headrace.spark.isolate import IncomingRecord, Reject, Release, each_record, isolate
from headrace.spark.jvm import JavaError, ensure_java, local_session
from headrace.spark.options import OptionError
from headrace.spark.queue.redriven import redrive_topic
from headrace.spark.source import HeadraceDataSource, register

__all__ = [
    "HeadraceDataSource",
    "IncomingRecord",
    "JavaError",
    "OptionError",
    "Redriven",
    "Reject",
    "Release",
    "acknowledge",
    "dead_letters",
    "each_record",
    "ensure_java",
    "isolate",
    "local_session",
    "redrive",
    "redrive_topic",
    "register",
]
