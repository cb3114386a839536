"""What a broker counts about itself while it works.

Counting must cost next to nothing: plain attributes and lists, changed on the event loop only, so
without locks. `metrics_families.py` makes samples of them when somebody asks. The counters of a
partition are its own (`Traffic`), and go with it.
"""

import threading
from bisect import bisect_left
from collections.abc import Sequence, Sized

from headrace.broker.histogram import Histogram
from headrace.broker.loop_stalls import LoopStalls
from headrace.wire.batches import BatchHeader

REQUEST_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
)  # fmt: skip
SYNC_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_NO_ERROR = 0
_ERRORS_MAX = 1000  # pairs of API and code that are told apart


class Traffic:
    """What went into and out of one partition since it was opened."""

    __slots__ = (
        "fetched_bytes", "produced_batches", "produced_bytes", "produced_records",
    )  # fmt: skip

    def __init__(self) -> None:
        self.produced_bytes = self.produced_records = self.produced_batches = 0
        self.fetched_bytes = 0

    def produced(self, data: Sized, headers: Sequence[BatchHeader]) -> None:
        """Batches were appended."""
        self.produced_bytes += len(data)
        self.produced_batches += len(headers)
        for header in headers:
            self.produced_records += header.last_offset_delta + 1


class ApiCounts:
    """The requests of one API; durations in seconds, sizes in bytes."""

    __slots__ = ("bytes_in", "bytes_out", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(REQUEST_SECONDS)
        self.bytes_in = self.bytes_out = 0


class Metrics:
    """The counters of one broker. All but `synced` are for the event loop's thread."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiCounts] = {}
        self.errors: dict[tuple[int, int], int] = {}  # (API key, error code) to answers
        self.closed: dict[str, int] = dict.fromkeys(
            ("peer", "protocol", "fault", "bug", "idle", "memory", "unread"), 0
        )
        self.connections_accepted = self.connections_refused = 0
        self.connections_refused_files = self.requests_muted = 0
        self.in_flight = 0
        self.stalls = LoopStalls()
        self.loop_lag = Histogram(LAG_SECONDS)
        self.syncs = Histogram(SYNC_SECONDS)
        self._syncing = threading.Lock()

    def request(self, key: int, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """A request was answered (or needed no answer) `seconds` after it was taken up."""
        try:
            one = self.apis[key]
        except KeyError:
            one = self.apis[key] = ApiCounts()
        # `Histogram.observe` by hand: a call would cost as much as all of this.
        histogram = one.seconds
        histogram.counts[bisect_left(REQUEST_SECONDS, seconds)] += 1
        histogram.sum += seconds
        one.bytes_in += bytes_in
        one.bytes_out += bytes_out

    def failed(self, key: int, code: int) -> None:
        """An answer, or a part of one, carries an error code; 0 is none."""
        pair = (key, code)
        if code != _NO_ERROR and (pair in self.errors or len(self.errors) < _ERRORS_MAX):
            self.errors[pair] = self.errors.get(pair, 0) + 1

    def synced(self, seconds: float) -> None:
        """A file was synced; called by the thread that did it."""
        with self._syncing:
            self.syncs.observe(seconds)
