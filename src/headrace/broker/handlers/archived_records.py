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
from headrace.core.ordered import ascending
from headrace.core.shard import ShareShard
from headrace.core.shard_words import ClearArchived
from headrace.core.share_words import ShareKey
from headrace.wire import share_archived as wire
from headrace.wire.primitives import Reader
from headrace.wire.share_archived import ArchivedApi
from headrace.wire.structs import Struct

_UNKNOWN = -1
_KEYS_PORTION = 1_000  # share-partitions whose lists are looked up without a pause
_NO_LIST = ArchivedList()

_Places = dict[str, dict[int, ShareKey]]  # by topic and partition
_Found = dict[tuple[str, int], tuple[ArchivedList, list[wire.Run]]]


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
            elements = sum([1 + len(partition.runs) for partition in listed.partitions])
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
        async with services.budgets.one_large():
            found, more = await _found(call, machine, services)
        async for place in services.budgets.portions(found):
            await services.opened(*place)
        async with services.budgets.one_large():
            partitions = tuple(
                [
                    _partition(*place, *one, services)
                    async for place, one in services.budgets.portions(found.items())
                ]
            )
    refused = await services.shares.durable_of(call.group, machine) or refused
    if refused is not None:
        return wire.ListArchivedResponse(error_code(refused), refused.message)
    return wire.ListArchivedResponse(Code.NONE, None, partitions, int(more))


async def _found(
    call: wire.ListArchivedRequest, machine: ShareShard, services: Services
) -> tuple[_Found, bool]:
    """Return a part of each list, until there is enough, and whether there is more."""
    runs_left, bytes_left = min(call.runs_max, wire.RUNS_MAX), wire.BYTES_MAX
    found: _Found = {}
    more = False
    walk = _walk(call.after, await _places(call, machine, services), machine)
    async for topic, index, known, run in services.budgets.portions(walk):
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
    return found, more


async def _places(
    call: wire.ListArchivedRequest, machine: ShareShard, services: Services
) -> _Places:
    """Return the share-partitions that have lists of the request, with pauses."""
    after, names = (call.after.topic, call.after.partition), frozenset(call.topics)
    lists, topics = machine.archive.lists, services.catalog.topics_by_id
    places: _Places = {}
    keys = list(machine.partitions_of(call.group))
    async for key in services.budgets.portions(keys, _KEYS_PORTION):
        topic = topics.get(key.topic_id)
        if topic is None or key not in lists or (topic.name, key.partition) < after:
            continue
        if not names or topic.name in names:
            places.setdefault(topic.name, {})[key.partition] = key
    return places


def _walk(
    after: wire.Place, places: _Places, machine: ShareShard
) -> Iterator[tuple[str, int, ArchivedList, ArchivedRun | None]]:
    """Yield each list without a run, then with each of its runs, by topic and partition.

    Lists may change, come and go between two steps.
    """
    lists = machine.archive.lists
    for topic in ascending(places):
        keys = places[topic]
        for index in ascending(keys):
            known = lists.get(keys[index], _NO_LIST)
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
