"""ListArchivedRecords (20907) and ClearArchivedRecords (20908): archived without a dead letter.

Messages are those of `wire/share_archived.py`, the lists those of `core/archived.py`. An answer
leaves once what it rests on is durable.
"""

from collections.abc import Iterator

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Raw, Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.broker.share_group_names import misnamed
from headrace.core.archived import ArchivedList, ArchivedRun
from headrace.core.errors import Refused, Why
from headrace.core.leases import told_holder
from headrace.core.shard_words import ClearArchived
from headrace.core.share_words import ShareKey
from headrace.wire import share_archived as wire
from headrace.wire.primitives import Reader, Writer
from headrace.wire.share_archived import ArchivedApi
from headrace.wire.structs import Struct

_UNKNOWN = -1


def decode(request: Request) -> wire.ListArchivedRequest | wire.ClearArchivedRequest:
    """Decode a request. Raises: Malformed."""
    source = Reader(request.body, 0, request.elements_max)
    if request.api_key == ArchivedApi.LIST:
        return wire.ListArchivedRequest.read(source)
    return wire.ClearArchivedRequest.read(source)


async def handle(request: Request, services: Services) -> Answer:
    match request.decoded or decode(request):
        case wire.ListArchivedRequest() as call:
            answer: Struct = await _list(call, services)
        case wire.ClearArchivedRequest() as call:
            answer = await _clear(call, services)
    out = Writer()
    answer.write(out)
    return Raw([out.data])


async def _list(call: wire.ListArchivedRequest, services: Services) -> wire.ListArchivedResponse:
    refused = _refused(call.group, services)
    if refused is None and call.runs_max < 1:
        refused = Refused(Why.INVALID_REQUEST, "runs_max begins at 1")
    for topic, index, _ in _lists(call.group, services) if refused is None else ():
        await services.opened(topic, index)
    found = list(_pages(call, services)) if refused is None else []
    refused = await services.shares.durable_of(call.group) or refused
    if refused is not None:
        return wire.ListArchivedResponse(error_code(refused), refused.message)
    partitions = tuple(partition for partition, _ in found)
    more = any(rest for _, rest in found)
    return wire.ListArchivedResponse(Code.NONE, None, partitions, int(more))


def _pages(
    call: wire.ListArchivedRequest, services: Services
) -> Iterator[tuple[wire.Partition, bool]]:
    """Of each list a part, until there is enough, and whether there is more of it."""
    runs_left, bytes_left = min(call.runs_max, wire.RUNS_MAX), wire.BYTES_MAX
    after, topics = call.after, frozenset(call.topics)
    for topic, index, known in _lists(call.group, services):
        if topics and topic not in topics:
            continue
        if (topic, index) < (after.topic, after.partition):
            continue
        told: list[wire.Run] = []
        more = False
        goes_on = (topic, index) == (after.topic, after.partition)
        for run in known.runs:
            if goes_on and run.number <= after.number:
                continue
            if runs_left <= 0 or bytes_left <= 0:
                more = True
                break
            told.append(_run(run))
            runs_left -= 1
            bytes_left -= wire.Run.BYTES + len(run.reason.encode()) + len(run.member.encode())
        if told or more or known.dropped:
            yield _partition(topic, index, known, told, services), more
        if more:
            return


def _partition(
    topic: str, index: int, known: ArchivedList, runs: list[wire.Run], services: Services
) -> wire.Partition:
    log_start, partition = _UNKNOWN, services.partition(topic, index)
    try:
        log_start = _UNKNOWN if partition is None else partition.start_offset
    except OSError:  # it cannot be opened, which the partition tells; the list can be read
        log_start = _UNKNOWN
    return wire.Partition(topic, index, log_start, known.dropped, tuple(runs))


def _run(run: ArchivedRun) -> wire.Run:
    first, last = run.span.first, run.span.last
    member = told_holder(run.member)
    return wire.Run(run.number, first, last, run.deliveries, run.at, run.reason, member)


async def _clear(call: wire.ClearArchivedRequest, services: Services) -> wire.ClearArchivedResponse:
    refused = _refused(call.group, services)
    if refused is not None:
        refused = await services.shares.durable_of(call.group) or refused
        return wire.ClearArchivedResponse(error_code(refused), refused.message)
    for place in call.places:
        topic = services.catalog.topics.get(place.topic)
        if topic is None:
            continue
        key = ShareKey(call.group, topic.id, place.partition)
        try:
            await services.shares.ask(call.group, ClearArchived(key, place.number))
        except StorageFault as fault:
            return wire.ClearArchivedResponse(Code.COORDINATOR_NOT_AVAILABLE, str(fault))
    return wire.ClearArchivedResponse(Code.NONE, None)


def _refused(group: str, services: Services) -> Refused | None:
    refused = misnamed(group, services)
    if refused is None and not services.shares.exists(group):
        refused = Refused(Why.UNKNOWN_GROUP, f"Group {group} not found.")
    return refused


def _lists(group: str, services: Services) -> list[tuple[str, int, ArchivedList]]:
    """The lists of a group, by name and number."""
    machine, topics = services.shares.machine(group), services.catalog.topics_by_id
    found = [
        (topics[key.topic_id].name, key.partition, machine.archive.lists[key])
        for key in machine.partitions_of(group)
        if key in machine.archive.lists and key.topic_id in topics
    ]
    return sorted(found, key=lambda one: one[:2])
