"""Fetch sessions: epochs, what changes, what is news, who makes room; a row for each rule."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from headrace.core.errors import Refused, Why
from headrace.core.fetch_session import (
    EVICTION_MS,
    PARTITIONS_MAX,
    Asked,
    Close,
    Command,
    Continue,
    FetchSessions,
    Key,
    Open,
    Session,
    SessionTold,
    Told,
)
from headrace.core.types import MonoMs

TOPIC = UUID(int=3)
NOTHING = Told(0, 0, 0, has_records=False)
LATE = EVICTION_MS + 1


def asked(*partitions: int, offset: int = 0) -> list[Asked]:
    return [Asked(TOPIC, one, -1, offset, -1, 1000) for one in partitions]


def keys(*partitions: int) -> list[Key]:
    return [(TOPIC, one) for one in partitions]


def do(sessions: FetchSessions, command: Command) -> Why | None:
    decided = sessions.decide(command)
    if isinstance(decided, Refused):
        assert decided.message
        return decided.why
    for event in decided:
        sessions.apply(event)
    return None


def opened(
    sessions: FetchSessions, new_id: int, partitions: Sequence[Asked], now: int = 0
) -> Session | None:
    assert do(sessions, Open(new_id, True, partitions, MonoMs(now))) is None
    return sessions.get(new_id)


def go_on(
    sessions: FetchSessions,
    session_id: int,
    epoch: int,
    partitions: Sequence[Asked] = (),
    *,
    forgotten: Sequence[Key] = (),
    by_ids: bool = True,
    now: int = 0,
) -> Why | None:
    command = Continue(session_id, epoch, by_ids, partitions, forgotten, MonoMs(now))
    return do(sessions, command)


def present(session: Session | None) -> Session:
    assert session is not None
    return session


def test_a_session_goes_on_by_one_epoch_a_request() -> None:
    sessions = FetchSessions(10)
    opened(sessions, 5, asked(0))
    assert go_on(sessions, 6, 1) is Why.FETCH_SESSION_NOT_FOUND
    assert go_on(sessions, 5, 2) is Why.FETCH_SESSION_EPOCH
    assert [go_on(sessions, 5, epoch) for epoch in (1, 2, 3)] == [None] * 3
    assert go_on(sessions, 5, 3) is Why.FETCH_SESSION_EPOCH, "a repeated request"
    present(sessions.get(5)).next_epoch = 2**31 - 1
    assert go_on(sessions, 5, 2**31 - 1) is None
    assert go_on(sessions, 5, 1) is None, "epochs wrap to 1, since 0 opens"


def test_a_session_does_not_change_between_names_and_ids() -> None:
    sessions = FetchSessions(10)
    opened(sessions, 5, asked(0))
    assert go_on(sessions, 5, 2, by_ids=False) is Why.FETCH_SESSION_EPOCH, "looked at first"
    assert go_on(sessions, 5, 1, by_ids=False) is Why.FETCH_SESSION_TOPIC_IDS
    assert go_on(sessions, 5, 1) is None, "the refused request has consumed no epoch"


def test_requests_name_what_changes() -> None:
    sessions = FetchSessions(10)
    session = present(opened(sessions, 5, asked(0, 1, 2)))
    assert go_on(sessions, 5, 1, asked(1, offset=7), forgotten=keys(0)) is None
    assert list(session.partitions) == keys(1, 2)
    assert session.partitions[TOPIC, 1].offset == 7
    assert go_on(sessions, 5, 2, asked(3), forgotten=keys(9)) is None
    assert list(session.partitions) == keys(1, 2, 3)


def test_a_session_without_partitions_or_with_too_many_ends() -> None:
    sessions = FetchSessions(10)
    opened(sessions, 5, asked(0, 1))
    assert go_on(sessions, 5, 1, asked(2), forgotten=keys(0, 1, 2)) is None
    assert sessions.get(5) is None
    opened(sessions, 6, asked(*range(PARTITIONS_MAX)))
    assert go_on(sessions, 6, 1, asked(0, 1)) is None, "known ones are none more"
    assert sessions.get(6) is not None
    assert go_on(sessions, 6, 2, asked(PARTITIONS_MAX)) is None
    assert sessions.get(6) is None
    assert opened(sessions, 7, asked(*range(PARTITIONS_MAX + 1))) is None
    assert opened(sessions, 8, []) is None


def test_only_news_is_told() -> None:
    sessions = FetchSessions(10)
    session = present(opened(sessions, 5, asked(0, 1)))
    first, other = keys(0, 1)
    assert session.is_news(first, NOTHING), "not told of yet"
    sessions.apply(SessionTold(5, [(first, NOTHING), (other, NOTHING)]))
    assert not session.is_news(first, NOTHING)
    assert session.is_news(first, NOTHING._replace(high_watermark=1))
    assert session.is_news(first, NOTHING._replace(start_offset=1))
    assert session.is_news(first, NOTHING._replace(has_records=True))
    failed = Told(-1, -1, 3, has_records=False)
    assert session.is_news(first, failed)
    sessions.apply(SessionTold(5, [(first, failed)]))
    assert session.is_news(first, failed), "an error is repeated each time"
    assert session.is_news(first, NOTHING), "and its end is told"
    assert go_on(sessions, 5, 1, forgotten=keys(1)) is None
    assert go_on(sessions, 5, 2, asked(1)) is None
    assert session.is_news(other, NOTHING), "forgotten, and asked for anew"


def test_who_had_records_is_looked_at_last() -> None:
    sessions = FetchSessions(10)
    session = present(opened(sessions, 5, asked(0, 1, 2)))
    found = NOTHING._replace(has_records=True)
    sessions.apply(SessionTold(5, [((TOPIC, 0), found), ((TOPIC, 1), NOTHING)]))
    assert list(session.partitions) == keys(1, 2, 0)
    sessions.apply(SessionTold(5, [((TOPIC, 1), found)]))
    assert list(session.partitions) == keys(2, 0, 1)
    sessions.apply(SessionTold(5, [((TOPIC, 9), found)]))
    assert len(session.partitions) == 3, "forgotten while it was read"
    sessions.apply(SessionTold(6, [((TOPIC, 1), found)]))
    assert sessions.get(6) is None


def test_closing_and_replacing() -> None:
    sessions = FetchSessions(10)
    opened(sessions, 5, asked(0))
    assert do(sessions, Close(5)) is None
    assert (len(sessions), go_on(sessions, 5, 1)) == (0, Why.FETCH_SESSION_NOT_FOUND)
    assert do(sessions, Close(5)) is None, "nothing to close"


def test_an_id_that_is_taken_is_not_given_again() -> None:
    sessions = FetchSessions(10)
    session = opened(sessions, 5, asked(0))
    assert opened(sessions, 5, asked(1)) is session
    assert list(present(session).partitions) == keys(0)


@pytest.mark.parametrize(
    ("used", "size", "now", "evicted"),
    [
        (0, 1, EVICTION_MS, None),  # all are young, and in use
        (0, 1, LATE, 1),  # the one that was not used for longest
        (LATE, 2, LATE, None),  # all are in use; the smallest that is old is not smaller
        (LATE, 3, LATE, 2),
    ],
)
def test_a_full_cache_makes_room_as_kafkas(
    used: int, size: int, now: int, evicted: int | None
) -> None:
    sessions = FetchSessions(3)
    for session_id, count in ((1, 3), (2, 2), (3, 4)):
        opened(sessions, session_id, asked(*range(count)))
        assert go_on(sessions, session_id, 1, now=used) is None
    if evicted == 1:
        assert go_on(sessions, 3, 2, now=1) is None
        assert go_on(sessions, 2, 2, now=1) is None
    found = opened(sessions, 9, asked(*range(size)), now)
    assert (found is None) == (evicted is None)
    assert {one for one in (1, 2, 3) if sessions.get(one) is None} == {evicted} - {None}


def test_a_cache_without_slots_keeps_nothing() -> None:
    assert opened(FetchSessions(0), 1, asked(0)) is None
