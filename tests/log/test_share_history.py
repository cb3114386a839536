"""The biography of a record: what a plain model saw of it, through restarts, snapshots, pruning."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.machine import Entry
from headrace.log import share_batches
from headrace.log.record_codec import SNAPSHOT, share_key
from headrace.log.share_history import Delivery, Happening, RecordHistory, What
from headrace.wire.batches import Record

from .share_history_rig import KEY, LOG_END, STATES, Life, Seen

_STEPS = 60


def biography(life: Life, offset: int) -> RecordHistory:
    history = RecordHistory(KEY, offset)
    for at, (entry, written) in enumerate(life.journal, life.pruned):
        record = Record(at, written, entry.key, entry.value, entry.headers)
        history.take(record, is_whole=not life.pruned)
    return history


def told(one: Delivery | Happening, whole: bool) -> tuple[object, ...]:
    """An entry; of what a lease had, a journal that was pruned may not know since when."""
    if isinstance(one, Happening):
        return one.what, one.at
    since = (one.since, one.seq) if whole or not is_leased(one) else None
    return one.outcome, one.until, one.number, one.holder, since


def seen(one: Seen, whole: bool) -> tuple[object, ...]:
    """The same, as the model saw it."""
    if isinstance(one.what, What):
        return one.what, one.at
    since = (one.since, one.seq) if whole or not is_leased(one) else None
    return one.what, one.at, one.number, one.holder, since


def is_leased(one: Delivery | Seen) -> bool:
    return (one.holder or "").startswith("lease/")


@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 32), size=st.sampled_from([60, 1_000_000]))
def test_it_is_what_a_plain_model_saw(seed: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share_batches, "RECORD_BYTES_MAX", size)
        life = Life(seed)
        for _ in range(_STEPS):
            life.step()
        for offset in range(LOG_END):
            check(life, offset)


def check(life: Life, offset: int) -> None:
    history, cell = biography(life, offset), life.cells[offset]
    known = history.biography()
    lasting = [one for one in known if isinstance(one, Delivery) and one.until is None]
    ended = [one for one in known if one not in lasting]
    story = [one for one in cell.story if one.written >= life.pruned]
    if life.pruned:
        story, ended = certain(life, story, ended)
    whole = not life.pruned
    assert [told(one, whole) for one in ended] == [seen(one, whole) for one in story]
    state = STATES[history.state]
    assert state == ("available" if cell.state == "acquired" else cell.state) or (
        state == "gone" and cell.finished
    )
    assert history.deliveries == cell.stored or state == "gone"
    has_lease = cell.state == "acquired" and cell.holder == life.lease
    assert bool(lasting) == (has_lease and cell.number > cell.stored)


def is_snapshot(entry: Entry) -> bool:
    return entry.value is not None and entry.key == share_key(SNAPSHOT, KEY)


def is_begun(one: Delivery | Happening | Seen) -> bool:
    return not isinstance(one, Delivery) and one.what in (What.STARTED, What.RESET)


def certain(
    life: Life, story: list[Seen], ended: list[Delivery | Happening]
) -> tuple[list[Seen], list[Delivery | Happening]]:
    """What a pruned journal tells for sure.

    Before its first snapshot a removed record may have been finished; and nobody can tell whether
    SPSO was set by that snapshot.
    """
    first = next(at for at, (entry, _) in enumerate(life.journal) if is_snapshot(entry))
    written, times = life.pruned + first, {at for _, at in life.journal[: first + 1]}
    story = [one for one in story if one.what is not What.REMOVED or one.written > written]
    begun = [one for one in story if is_begun(one) and one.written == written]
    story = [one for one in story if one not in begun]
    unsure = [seen(one, False) for one in begun] + [(What.REMOVED, at) for at in times]
    return story, [
        one for one in ended if told(one, False) not in unsure and told(one, False)[0] != What.FOUND
    ]
