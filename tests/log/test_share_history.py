"""The biography of a record: what a plain model saw of it, through restarts, snapshots, pruning."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.machine import Entry
from headrace.log import share_batches
from headrace.log.record_codec import SNAPSHOT, share_key
from headrace.log.share_history import Delivery, Happening, RecordHistory, What
from headrace.wire.batches import Record

from .share_history_rig import KEY, LOG_END, STATES, Life, Seen

_STEPS = 60


def biography(life: Life, offset: int, entries_max: int | None = None) -> RecordHistory:
    history = RecordHistory(KEY, offset)
    for at, (entry, written) in enumerate(life.journal[:entries_max], life.pruned):
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
@example(seed=1110, size=1_000_000)  # a pruned journal begins with a reset past a finished record
@example(seed=1481, size=1_000_000)  # a record is removed in the ms of its first snapshot
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
    is_past_unsure = False
    if life.pruned:
        is_past_unsure = cell.state == "gone" and is_begun_unsure(life, cell.story)
        story, ended = certain(life, offset, story, ended)
    whole = not life.pruned
    assert [told(one, whole) for one in ended] == [seen(one, whole) for one in story]
    state = STATES[history.state]
    if is_past_unsure:
        assert state in ("gone", "acknowledged", "archived")
        return
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


def first_snapshot(life: Life) -> int:
    return next(at for at, (entry, _) in enumerate(life.journal) if is_snapshot(entry))


def is_begun_unsure(life: Life, story: list[Seen]) -> bool:
    """Check whether the first snapshot of a pruned journal set SPSO for the last time.

    Without the entries before it, the journal shows the same for records that were finished.
    """
    begun = [one for one in story if is_begun(one)]
    return begun[-1].written == life.pruned + first_snapshot(life)


def certain(
    life: Life, offset: int, story: list[Seen], ended: list[Delivery | Happening]
) -> tuple[list[Seen], list[Delivery | Happening]]:
    """Keep what a pruned journal determines.

    Before its first snapshot a removed record may have been finished; and nobody can tell whether
    SPSO was set by that snapshot.
    """
    first = first_snapshot(life)
    written = life.pruned + first
    story = [one for one in story if one.what is not What.REMOVED or one.written > written]
    begun = [one for one in story if is_begun(one) and one.written == written]
    story = [one for one in story if one not in begun]
    ended = [one for one in ended if told(one, False)[0] != What.FOUND]
    before = biography(life, offset, first + 1).biography()
    unsure = [told(one, False) for one in before if told(one, False)[0] is What.REMOVED]
    unsure += [seen(one, False) for one in begun]
    kept = []
    for one in ended:
        if told(one, False) in unsure:
            unsure.remove(told(one, False))
        else:
            kept.append(one)
    return story, kept
