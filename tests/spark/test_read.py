"""What a task does beside its columns, in a process of its own as Spark has it."""

import subprocess
import sys


def test_what_a_worker_has_loaded_is_frozen_once() -> None:
    """Without brokers: a task of no ranges asks for nothing."""
    program = """
import gc
from headrace.spark.columns import schema_of
from headrace.spark.options import ReadOptions
from headrace.spark.read import read_task
options = ReadOptions(bootstrap_servers="127.0.0.1:1")
schema = schema_of(options, delivery=False)
class Log(ReadOptions):
    who = "test"
before = gc.get_freeze_count()
counts = []
for _ in range(2):
    assert list(read_task(Log(bootstrap_servers="127.0.0.1:1"), schema, [], "")) == []
    counts.append(gc.get_freeze_count())
    keep = [[] for _ in range(10_000)]
print(before == 0, counts[0] > 10_000, counts[0] == counts[1])"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("True True True\n", "")
