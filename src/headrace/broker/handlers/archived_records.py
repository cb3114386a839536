"""ListArchivedRecords (20907) and ClearArchivedRecords (20908): archived without a dead letter.

Messages are those of `wire/share_archived.py`, the lists those of `core/archived.py`. An answer
leaves once what it rests on is durable.
"""

from collections.abc import Iterator

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.runtime import StorageFault
from headrace.broker.services import Services
from headrace.broker.share_group_names import misnamed
from headrace.core.archived import ArchivedList, ArchivedRun
from headrace.core.errors import Refused, Why
from headrace.core.leases import told_holder
from headrace.core.shard_words import ClearArchived
from headrace.core.share_words import ShareKey
from headrace.wire import share_archived as wire
from headrace.wire.primitives import Reader
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
    answer: Struct
    match request.decoded or decode(request):
        case wire.ListArchivedRequest() as call:
            answer = listed = await _list(call, services)
            elements = sum([len(partition.runs) for partition in listed.partitions])
        case wire.ClearArchivedRequest() as call:
            answer, elements = await _clear(call, services), 0
    return await services.budgets.written(answer, elements)


async def _list(call: wire.ListArchivedRequest, services: Services) -> wire.ListArchivedResponse:
    refused = _refused(call.group, services)
    if refused is None and call.runs_max < 1:
        refused = Refused(Why.INVALID_REQUEST, "runs_max begins at 1")
    machine = services.shares.machine(call.group)
    partitions: tuple[wire.Partition, ...] = ()
    more = False
    if refused is None:
        for topic, index, _ in _lists(call.group, services):
            await services.opened(topic, index)
        async with services.budgets.one_large():
            partitions, more = await _found(call, services)
    refused = await services.shares.durable_of(call.group, machine) or refused
    if refused is not None:
        return wire.ListArchivedResponse(error_code(refused), refused.message)
    return wire.ListArchivedResponse(Code.NONE, None, partitions, int(more))


async def _found(
    call: wire.ListArchivedRequest, services: Services
) -> tuple[tuple[wire.Partition, ...], bool]:
    """Return a part of each list, until there is enough, and whether there is more."""
    runs_left, bytes_left = min(call.runs_max, wire.RUNS_MAX), wire.BYTES_MAX
    found: dict[tuple[str, int], tuple[ArchivedList, list[wire.Run]]] = {}
    more = False
    async for topic, index, known, run in services.budgets.portions(_walk(call, services)):
        if run is None and not known.dropped:
            continue
        _, runs = found.setdefault((topic, index), (known, []))
        if run is None:
            continue
        if runs_left <= 0 or bytes_left <= 0:
            more = True
            break
        runs.append(_run(run))
        runs_left -= 1
        bytes_left -= wire.Run.BYTES + len(run.reason.encode()) + len(run.member.encode())
    parts = [_partition(*place, *one, services) for place, one in found.items()]
    return tuple(parts), more


def _walk(
    call: wire.ListArchivedRequest, services: Services
) -> Iterator[tuple[str, int, ArchivedList, ArchivedRun | None]]:
    """Yield each list of the request without a run, then with each of its runs.

    Lists may change between two steps.
    """
    after, topics = call.after, frozenset(call.topics)
    for topic, index, known in _lists(call.group, services):
        if (topics and topic not in topics) or (topic, index) < (after.topic, after.partition):
            continue
        yield topic, index, known, None
        goes_on = (topic, index) == (after.topic, after.partition)
        for page in sorted(known.pages):
            for run in known.pages.get(page, ()):
                if not goes_on or run.number > after.number:
                    yield topic, index, known, run


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
