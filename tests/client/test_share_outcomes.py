"""What the log and the user are told of verdicts that failed."""

import asyncio
import logging
from uuid import UUID

import pytest

import headrace
from headrace.client.share_consumer.hand import Hand
from headrace.client.share_consumer.outcomes import Outcomes
from headrace.client.share_consumer.records import ShareRecord
from headrace.client.share_consumer.words import Settings, ShareStats

from .conftest import ScriptedBroker
from .share_script import ACKNOWLEDGE, ShareScript, consumer, until


@pytest.fixture
def share(broker: ScriptedBroker) -> ShareScript:
    return ShareScript(broker)


def test_what_a_lost_connection_took_along_is_one_line_with_its_cause(
    share: ShareScript, broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    share.records.extend([0, 1, 2, 3, 7])

    async def story() -> None:
        async with consumer(share) as opened:
            found: list[headrace.ShareRecord] = []
            while len(found) < 5:
                found += await opened.poll(1)
            broker.answers[ACKNOWLEDGE] = lambda _: None  # hangs up
            found[0].release()
            await until(lambda: opened.stats.reconnects == 1)
            for record in found[1:]:
                with pytest.raises(headrace.LockLost, match=r"not held any more: the connection"):
                    await record.accept()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    (line,) = caplog.messages
    assert "t-0 offsets 1 to 3, 7 (4 records): the connection to 127.0.0.1" in line
    assert line.endswith("delivered again unless finished before")


def test_a_callback_that_raises_ends_the_consumer(
    share: ShareScript, caplog: pytest.LogCaptureFixture
) -> None:
    share.records.append(0)

    def broken(result: headrace.AcknowledgeResult) -> None:
        raise KeyError(result.topic)

    async def story() -> None:
        async with consumer(share, on_acknowledged=broken) as opened:
            (record,) = await opened.poll()
            await record.accept()
            with pytest.raises(headrace.ClientError, match="on_acknowledged raised KeyError"):
                await opened.poll()

    asyncio.run(story())
    assert "in broken" in caplog.text, "it says where"


class Telling:
    """What a hand tells goes to these outcomes."""

    def __init__(self, outcomes: Outcomes) -> None:
        self.ended = outcomes.ended

    def said(self) -> None:
        """Nobody sends anything."""


def test_a_line_is_short_and_comes_also_when_all_is_over(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(
        (), "g", ("t",), "c", client_rack=None, max_poll_records=1, max_in_hand=1,
        fetch_max_wait_ms=1, fetch_min_bytes=1, fetch_max_bytes=1, renew_s_max=0, timeout_s=1,
        on_acknowledged=None,
    )  # fmt: skip
    outcomes = Outcomes(settings, ShareStats(), failed=lambda error: pytest.fail(str(error)))
    hand = Hand(Telling(outcomes), clock=lambda: 0.0, renew_s_max=0)
    records = [
        ShareRecord(
            hand, (UUID(int=1), 0), "t", (offset, 5, None, b"v", ()),
            timestamp_type=0, delivery_count=1,
        )
        for offset in range(0, 40, 2)
    ]  # fmt: skip
    hand.take(records, asked_at=0.0, lock_s=30.0)
    for record in records:
        record.accept()
    outcomes.close()
    hand.lose("the moon is full")
    (line,) = caplog.messages
    ranges = "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 10 ranges more (20 records)"
    assert f"t-0 offsets {ranges}: the moon is full; " in line
