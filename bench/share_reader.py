"""Reads records as members of a share group, by confluent-kafka; the same as `ShareReader.java`.

A process of its own, so that bench/share.py does not take part. One round a line: `servers topic
group consumers records`; printed are `begun` once every consumer had its first records and
acknowledged them, then `records seconds` and the count of each consumer.
"""

import sys
import threading
import time

from confluent_kafka import ShareConsumer

_POLL_SECONDS = 0.5


class _Round:
    """What the consumers of a round have in common."""

    def __init__(self, consumers: int, wanted: int) -> None:
        self.wanted = wanted
        self.each = [0] * consumers
        self.before = [0] * consumers
        self.begun_at = self.ended_at = 0.0
        self.begin = threading.Barrier(consumers, self._begun)

    def missing(self) -> bool:
        return sum(self.before) + sum(self.each) < self.wanted

    def _begun(self) -> None:
        print("begun", flush=True)
        self.begun_at = time.perf_counter()


def main() -> None:
    for line in sys.stdin:
        servers, topic, group, consumers, records = line.split()
        one = _Round(int(consumers), int(records))
        threads = [
            threading.Thread(target=_read, args=(servers, topic, group, one, index))
            for index in range(int(consumers))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(sum(one.each), one.ended_at - one.begun_at, *one.each, flush=True)


def _read(servers: str, topic: str, group: str, one: _Round, index: int) -> None:
    consumer = ShareConsumer({"bootstrap.servers": servers, "group.id": group, "log_level": 2})
    consumer.subscribe([topic])
    while not one.before[index]:
        one.before[index] = len(consumer.poll(_POLL_SECONDS))
    consumer.commit_sync()
    one.begin.wait()
    while one.missing():
        one.each[index] += len(consumer.poll(_POLL_SECONDS))
    consumer.commit_sync()
    one.ended_at = max(one.ended_at, time.perf_counter())
    consumer.close()


if __name__ == "__main__":
    main()
