"""The metrics that Prometheus is given: every name, and where its samples come from.

Names and labels of topics and consumer groups are kafka_exporter's, so that its dashboards work;
the rest begins with `headrace_` and has base units. Samples come in pieces, because a broker has
thousands of partitions: whoever renders them can do other work between two pieces. A series lives
as long as what it is about.
"""

import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator

from headrace import __version__
from headrace.broker import metrics_shapes
from headrace.broker.errors import Code
from headrace.broker.histogram import Histogram
from headrace.broker.metrics_groups import of_groups
from headrace.broker.metrics_shapes import Families, Family, Sample, Samples, single
from headrace.broker.metrics_shares import of_share_groups
from headrace.broker.partitions import Partition
from headrace.broker.server import Server
from headrace.broker.services import Services

Piece = tuple[Family, list[Sample], bool]

_TOPIC = ("topic",)
_PARTITION = ("topic", "partition")


def pieces(server: Server, granularity: str) -> Iterator[Piece]:
    """Every family with some of its samples at a time; True with the first piece of a family."""
    for family, samples in _families(server, granularity):
        first = True
        for piece in metrics_shapes.pieces(samples):
            yield family, piece, first
            first = False


def _families(server: Server, granularity: str) -> Families:
    yield from _broker(server)
    yield from _limits(server)
    yield from _requests(server)
    yield from _journals(server.services)
    yield from _topics(server.services)
    if granularity == "partition":
        yield from _partitions(server.services)
    if granularity != "none":
        yield from _traffic(server.services, granularity)
    yield from of_groups(server.services, granularity)
    yield from of_share_groups(server.services, granularity)


# ---- the broker


def _broker(server: Server) -> Families:
    services, metrics = server.services, server.services.metrics
    yield single("kafka_brokers", "Brokers in the cluster: always this one.", 1)
    yield (
        Family("headrace_build", "info", "Versions.", ("version", "kernel", "python")),
        [Sample((__version__, _kernel(), platform.python_version()), 1)],
    )
    yield single("headrace_connections", "Clients connected now.", len(server.connections))
    yield single(
        "headrace_connections_accepted", "Connections accepted.",
        metrics.connections_accepted, "counter",
    )  # fmt: skip
    yield single(
        "headrace_connections_refused",
        "Connections refused because of max.connections.",
        metrics.connections_refused,
        "counter",
    )
    yield (
        Family(
            "headrace_connections_closed",
            "counter",
            "Connections that ended, by who ended them: peer (the client or a stop), protocol "
            "(it sent what it must not), fault (a disk fault), bug, idle, memory (its requests "
            "used up the memory), unread (it did not read its responses).",
            ("reason",),
        ),
        [Sample((reason,), count) for reason, count in metrics.closed.items()],
    )
    yield single("headrace_long_polls_waiting", "Fetches that wait for records.",
               services.waits.waiting)  # fmt: skip
    yield single(
        "headrace_clock_disagreement_seconds",
        "Wall time minus the time that is trusted; 0 while they agree.",
        services.clock.disagreement_ms / 1000,
    )
    yield single(
        "headrace_clock_stalled_seconds",
        "Time in which the broker did not run, and by which sessions and locks were extended.",
        services.clock.stalled_ms / 1000, "counter",
    )  # fmt: skip
    yield (
        Family("headrace_event_loop_lag_seconds", "histogram",
               "How late a timer of the event loop fires; sampled."),
        _histogram((), metrics.loop_lag),
    )  # fmt: skip


def _limits(server: Server) -> Families:
    services, metrics = server.services, server.services.metrics
    yield single(
        "headrace_connections_refused_files",
        "Connections refused because too many files are open.",
        metrics.connections_refused_files,
        "counter",
    )
    yield single("headrace_queued_request_bytes",
                 "Memory of requests received and not answered; small ones are not counted.",
                 services.budgets.request_bytes)  # fmt: skip
    yield single("headrace_queued_response_bytes",
                 "Memory of responses that clients have not read yet; small ones are not counted.",
                 services.budgets.response_bytes)  # fmt: skip
    yield single("headrace_requests_muted",
                 "Requests that were not read further for a while, because memory was used up.",
                 metrics.requests_muted, "counter")  # fmt: skip
    yield single("headrace_groups_memory_bytes", "Memory of groups, estimated.",
                 services.group_memory.bytes)  # fmt: skip
    yield single("headrace_groups_refused",
                 "Requests refused because groups are too many or take too much memory.",
                 services.group_memory.refused, "counter")  # fmt: skip
    producers = services.partitions.producer_limit
    yield single("headrace_producers",
                 "Idempotent producers remembered, each once for every partition it wrote to.",
                 producers.count)  # fmt: skip
    yield single("headrace_producers_refused",
                 "Batches of new idempotent producers refused because too many are remembered.",
                 producers.refused, "counter")  # fmt: skip
    yield (
        Family("headrace_loop_stall_seconds", "histogram",
               "Steps that held the event loop for 20 ms or longer, by API or background task.",
               ("by",)),
        (
            sample
            for name, one in sorted(metrics.stalls.by_name.items())
            for sample in _histogram((name,), one)
        ),
    )  # fmt: skip


def _kernel() -> str:
    """What decodes records in columns in this process: compiled or numpy; none when nothing did."""
    columns = sys.modules.get("headrace.wire.columns")
    return "none" if columns is None else str(getattr(columns, "KERNEL", "numpy"))


# ---- requests


def _requests(server: Server) -> Families:
    metrics = server.services.metrics
    names = {api.key: api.name for api in server.services.apis}
    apis = [(names.get(key, str(key)), one) for key, one in sorted(metrics.apis.items())]
    yield (
        Family("headrace_request_seconds", "histogram",
               "From taking a request up to its answer, waits included; _count counts requests.",
               ("api",)),
        (sample for name, one in apis for sample in _histogram((name,), one.seconds)),
    )  # fmt: skip
    yield (
        Family("headrace_request_bytes", "counter", "Bytes of requests.", ("api",)),
        [Sample((name,), one.bytes_in) for name, one in apis],
    )
    yield (
        Family("headrace_response_bytes", "counter", "Bytes of responses.", ("api",)),
        [Sample((name,), one.bytes_out) for name, one in apis],
    )
    yield (
        Family("headrace_request_errors", "counter",
               "Answers, or parts of one, with an error code of Kafka's.", ("api", "code")),
        [
            Sample((names.get(key, str(key)), _code(code)), count)
            for (key, code), count in sorted(metrics.errors.items())
        ],
    )  # fmt: skip
    yield single("headrace_requests_in_flight", "Requests being answered, waiting ones included.",
               metrics.in_flight)  # fmt: skip


def _code(code: int) -> str:
    return Code(code).name if code in set(Code) else str(code)


# ---- journals and disk


def _journals(services: Services) -> Families:
    journals = services.journals
    yield (
        Family("headrace_journal_appends", "counter",
               "Batches of events appended to a journal.", ("journal",)),
        [Sample((one.name,), one.appends) for one in journals],
    )  # fmt: skip
    yield (
        Family("headrace_journal_records", "counter",
               "Records appended to a journal.", ("journal",)),
        [Sample((one.name,), one.records) for one in journals],
    )  # fmt: skip
    yield (
        Family("headrace_journal_waiting", "gauge",
               "Callers whose answer waits for the journal.", ("journal",)),
        [Sample((one.name,), one.waiting) for one in journals],
    )  # fmt: skip
    yield (
        Family("headrace_sync_seconds", "histogram", "Duration of fdatasync on logs and journals."),
        _histogram((), services.metrics.syncs),
    )


# ---- topics


def _topics(services: Services) -> Families:
    yield (
        Family("kafka_topic_partitions", "gauge", "Partitions of a topic.", _TOPIC),
        [Sample((topic.name,), topic.partitions) for topic in services.catalog.topics.values()],
    )
    refused = sum(one.refused is not None for one in services.partitions)
    yield (
        Family("headrace_partitions_refused", "gauge",
               "Partitions that are not served because files of them are damaged or missing."),
        [Sample((), refused)],
    )  # fmt: skip
    scrub = services.scrub
    yield single("headrace_scrub_damaged_files", "Files that the scrub found damaged.",
                 len(scrub.damages))  # fmt: skip
    yield single("headrace_scrub_bytes", "Bytes that the scrub verified.", scrub.bytes_verified,
                 "counter")  # fmt: skip
    yield single("headrace_scrub_passes", "Passes of the scrub that ended.", scrub.passes,
                 "counter")  # fmt: skip


def _partitions(services: Services) -> Families:
    def each(value: Callable[[Partition], float]) -> Samples:
        for one in services.partitions:
            if one.is_open:
                yield Sample((one.topic.name, str(one.index)), value(one))

    yield (
        Family("kafka_topic_partition_current_offset", "gauge",
               "Offset that the next record gets.", _PARTITION),
        each(lambda one: one.high_watermark),
    )  # fmt: skip
    yield (
        Family("kafka_topic_partition_oldest_offset", "gauge",
               "First offset that is kept.", _PARTITION),
        each(lambda one: one.start_offset),
    )  # fmt: skip
    yield (
        Family("headrace_partition_size_bytes", "gauge",
               "Bytes of the batches of a partition.", _PARTITION),
        each(lambda one: one.log.size_bytes),
    )  # fmt: skip


_TRAFFIC = (
    ("produced_bytes", "Bytes of batches appended, those of the broker's own included."),
    ("produced_records", "Records appended."),
    ("produced_batches", "Batches appended."),
    ("fetched_bytes", "Bytes of records sent to Fetch and ShareFetch."),
)


def _traffic(services: Services, granularity: str) -> Families:
    by_partition = granularity == "partition"
    for field, doc in _TRAFFIC:
        family = Family(f"headrace_{field}", "counter", doc,
                        _PARTITION if by_partition else _TOPIC)  # fmt: skip
        if by_partition:
            yield (
                family,
                (
                    Sample((one.topic.name, str(one.index)), getattr(one.traffic, field))
                    for one in services.partitions
                ),
            )
            continue
        sums: Counter[str] = Counter()
        for one in services.partitions:
            sums[one.topic.name] += getattr(one.traffic, field)
        yield family, [Sample((name,), total) for name, total in sums.items()]


# ---- shapes


def _histogram(labels: tuple[str, ...], histogram: Histogram) -> Samples:
    total = 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        total += count
        text = "+Inf" if bound is None else repr(bound)
        yield Sample(labels, total, "_bucket", text)
    yield Sample(labels, total, "_count")
    yield Sample(labels, histogram.sum, "_sum")
