"""A share consumer and a broker that answers with errors: what is said again, and what is lost."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headrace
from headrace.wire.codec import decode_request
from headrace.wire.primitives import Reader

from .conftest import ScriptedBroker
from .share_script import (
    ACKNOWLEDGE,
    DESCRIBE_CONFIGS,
    FETCH,
    HEARTBEAT,
    ShareScript,
    consumer,
    until,
)

ACCEPT, RELEASE, REJECT = 1, 2, 3


@pytest.fixture
def share(broker: ScriptedBroker) -> ShareScript:
    return ShareScript(broker)


@pytest.mark.parametrize("code", [122, 123])
def test_another_session_is_opened_and_verdicts_are_said_there(
    share: ShareScript, code: int
) -> None:
    share.records.append(3)

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            share.codes[ACKNOWLEDGE].append(code)
            await record.accept()
            assert share.said == [(3, 3, ACCEPT, None)]

    asyncio.run(story())
    refused = share.epochs.index(next(one for one in share.epochs if one[0] == ACKNOWLEDGE))
    assert share.epochs[refused + 1] == (FETCH, 0)
    assert share.epochs[refused + 2][1] == 1


def test_a_broker_with_too_many_sessions_is_asked_again(
    share: ShareScript, caplog: pytest.LogCaptureFixture
) -> None:
    share.codes[FETCH].extend([133, 133])
    share.records.append(0)

    async def story() -> None:
        async with consumer(share) as opened:
            assert len(await opened.poll()) == 1

    asyncio.run(story())
    assert share.epochs[:3] == [(FETCH, 0)] * 3
    (line,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "group.share.max.share.sessions" in line.getMessage()


def test_any_other_refusal_counts_as_an_epoch(share: ShareScript) -> None:
    share.records.append(0)

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            share.codes[ACKNOWLEDGE].append(-1)
            await record.accept()

    asyncio.run(story())
    epochs = [epoch for _, epoch in share.epochs]
    assert epochs[:-1] == list(range(len(epochs) - 1))
    assert epochs[-1] == -1  # the end of the session
    assert share.said == [(0, 0, ACCEPT, None)]


@pytest.mark.parametrize("code", [30, 35])
def test_a_refusal_that_stays_ends_the_consumer(share: ShareScript, code: int) -> None:
    share.codes[FETCH].append(code)

    async def story() -> None:
        async with consumer(share) as opened:
            with pytest.raises(headrace.BrokerError) as raised:
                await opened.poll()
            assert raised.value.code == code

    asyncio.run(story())


def test_a_refusal_in_the_middle_leaves_nobody_waiting(share: ShareScript) -> None:
    share.records.append(0)

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            share.codes[ACKNOWLEDGE].append(30)
            with pytest.raises(headrace.LockLost, match="GROUP_AUTHORIZATION_FAILED"):
                await record.accept()
            with pytest.raises(headrace.BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                await opened.commit()

    asyncio.run(story())


def test_a_consumer_that_closes_opens_a_session_for_its_verdicts(share: ShareScript) -> None:
    share.records.extend([0, 1])

    async def story() -> None:
        async with consumer(share) as opened:
            first, _ = await opened.poll(1), await opened.poll(1)
            share.codes[ACKNOWLEDGE].append(122)
            first[0].accept()

    asyncio.run(story())
    assert share.said == [(0, 0, ACCEPT, None), (1, 1, RELEASE, None)]


def test_a_consumer_is_started_once(share: ShareScript) -> None:
    unused = headrace.ShareConsumer(share.broker.address, group="g", topics=["t"])
    assert "group 'g'" in repr(unused)

    async def story() -> None:
        with pytest.raises(headrace.Closed, match="not started"):
            await unused.poll()
        await unused.close()
        async with unused:
            with pytest.raises(headrace.Closed, match="started before"):
                await unused.start()

    asyncio.run(story())


def test_a_topic_that_may_not_be_read_ends_the_consumer(share: ShareScript) -> None:
    share.fetch_codes.append(29)

    async def story() -> None:
        async with consumer(share) as opened:
            with pytest.raises(headrace.BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                await opened.poll()

    asyncio.run(story())


@pytest.mark.parametrize("code", [-1, 3, 6, 74, 78, 100])
def test_a_partition_that_cannot_be_fetched_now_is_fetched_later(
    share: ShareScript, code: int
) -> None:
    share.fetch_codes.append(code)
    share.records.append(5)

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            assert record.offset == 5

    asyncio.run(story())


@pytest.mark.parametrize("code", [15, 16])
def test_verdicts_are_said_again_while_state_cannot_be_written(
    share: ShareScript, code: int
) -> None:
    share.records.append(0)
    share.ack_codes.extend([code, code])

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            await record.reject("why not")

    asyncio.run(story())
    assert share.said == [(0, 0, REJECT, "why not")]


@pytest.mark.parametrize(("code", "kind"), [(6, headrace.LockLost), (42, headrace.BrokerError)])
def test_a_verdict_that_is_refused_is_raised_by_the_next_commit(
    share: ShareScript, caplog: pytest.LogCaptureFixture, code: int, kind: type[Exception]
) -> None:
    share.records.append(0)
    share.ack_codes.append(code)
    told: list[headrace.AcknowledgeResult] = []

    async def story() -> None:
        async with consumer(share, on_acknowledged=told.append) as opened:
            (record,) = await opened.poll()
            record.accept()
            with pytest.raises(kind, match="t-0 offset 0"):
                await opened.commit()
            await opened.commit()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    ((one,), (line,)) = told, caplog.messages
    assert (one.topic, one.partition, one.first, one.last, one.verdict) == ("t", 0, 0, 0, "accept")
    assert isinstance(one.error, kind)
    assert "t-0 offset 0" in line


def test_verdicts_on_their_way_are_lost_with_the_connection(
    share: ShareScript, broker: ScriptedBroker
) -> None:
    share.records.extend([0, 1])
    answers = broker.answers[ACKNOWLEDGE]

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll(1)
            broker.answers[ACKNOWLEDGE] = lambda _: None  # hangs up
            with pytest.raises(headrace.LockLost, match="connection to"):
                await record.accept()
            broker.answers[ACKNOWLEDGE] = answers
            (again,) = await opened.poll(1)
            await again.accept()
            assert opened.stats.reconnects == 1

    asyncio.run(story())
    assert share.said == [(1, 1, ACCEPT, None)]


@pytest.mark.parametrize("code", [25, 69, 110])
def test_a_member_that_was_forgotten_joins_again_and_keeps_its_records(
    share: ShareScript, code: int
) -> None:
    share.records.append(0)

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            share.codes[HEARTBEAT].append(code)
            await until(lambda: share.member_epochs.count(0) == 2)
            await record.accept()

    asyncio.run(story())
    assert share.said == [(0, 0, ACCEPT, None)]
    assert share.member_epochs[-1] == -1


@pytest.mark.parametrize(
    ("code", "attempts", "is_reported"), [(15, 2, False), (25, 1, False), (30, 1, True)]
)
def test_leaving_is_repeated_while_the_coordinator_is_away(
    share: ShareScript,
    caplog: pytest.LogCaptureFixture,
    code: int,
    attempts: int,
    is_reported: bool,
) -> None:
    codes, answer = [code], share.broker.answers[HEARTBEAT]

    def heartbeat(source: Reader) -> bytes | None:
        body = source.take(source.remaining)
        if decode_request(HEARTBEAT, 1, body).member_epoch == -1 and codes:
            share.codes[HEARTBEAT].append(codes.pop())
        return answer(Reader(body))

    share.broker.answers[HEARTBEAT] = heartbeat

    async def story() -> None:
        async with consumer(share):
            pass

    with caplog.at_level("INFO"):
        asyncio.run(story())
    assert share.member_epochs.count(-1) == attempts
    assert ("did not hear the leaving" in caplog.text) is is_reported


def test_a_coordinator_that_loads_is_asked_again(share: ShareScript) -> None:
    share.codes[HEARTBEAT].extend([14, 15, 16])

    async def story() -> None:
        async with consumer(share):
            assert share.member_epochs[:4] == [0, 0, 0, 0]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (69, "GROUP_ID_NOT_FOUND: scripted; .* read it with a consumer, or take another name"),
        (25, "UNKNOWN_MEMBER_ID: scripted; .* give it another member_id, or none"),
        (110, "FENCED_MEMBER_EPOCH: scripted; .* give it another member_id, or none"),
    ],
)
def test_a_group_that_cannot_be_joined_is_told_at_once(
    share: ShareScript, code: int, told: str
) -> None:
    share.codes[HEARTBEAT].append(code)

    async def story() -> None:
        async with consumer(share):
            raise AssertionError("it cannot be entered")

    with pytest.raises(headrace.BrokerError, match=told):
        asyncio.run(story())


def test_a_member_that_may_not_stay_is_told_by_the_next_poll(share: ShareScript) -> None:
    async def story() -> None:
        async with consumer(share) as opened:
            share.codes[HEARTBEAT].append(30)
            with pytest.raises(headrace.BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                await opened.poll()

    asyncio.run(story())


def test_a_broker_without_renewal(broker: ScriptedBroker, caplog: pytest.LogCaptureFixture) -> None:
    share = ShareScript(broker, version=1)
    share.records.append(0)

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            with pytest.raises(headrace.Unsupported):
                await record.renew()
            await record.accept()

    asyncio.run(story())
    assert share.said == [(0, 0, ACCEPT, None)]
    assert "older than Kafka 4.2" in caplog.text


def test_a_renewal_that_the_group_has_off_says_nothing_of_the_lock(
    share: ShareScript, caplog: pytest.LogCaptureFixture
) -> None:
    share.records.append(0)
    share.renewal = "false"

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            share.ack_codes.append(121)
            with pytest.raises(headrace.Unsupported, match="the group has it off"):
                await record.renew()
            assert record.is_held
            await record.accept()

    asyncio.run(story())
    assert "share.renew.acknowledge.enable" in caplog.text
    assert share.said == [(0, 0, ACCEPT, None)]


def test_the_group_is_not_asked_for_each_renewal_that_is_refused(
    share: ShareScript, broker: ScriptedBroker
) -> None:
    share.records.append(0)
    asked: list[Any] = []
    answer = broker.answers[DESCRIBE_CONFIGS]

    def count(source: Any) -> Any:
        asked.append(source)
        return answer(source)

    broker.answers[DESCRIBE_CONFIGS] = count

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            share.ack_codes.extend([121] * 4)  # the first is tried twice
            for _ in range(3):
                with pytest.raises(headrace.LockLost):
                    await record.renew()

    asyncio.run(story())
    assert len(asked) == 1


def test_a_fetch_that_brings_verdicts_waits_for_nothing(share: ShareScript) -> None:
    share.records.extend([0, 1])

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll(1)
            record.accept()
            await opened.poll(1)  # before the verdict could go by itself

    asyncio.run(story())
    saying = [(wait, limit) for wait, limit, has_acks in share.fetches if has_acks]
    asking = [(wait, limit) for wait, limit, has_acks in share.fetches if not has_acks and limit]
    assert saying == [(0, 1)]
    assert {limit for _, limit in asking} == {1}


def test_nobody_answers() -> None:
    async def story() -> None:
        settings: dict[str, Any] = {"group": "g", "topics": ["t"], "timeout_s": 0.2}
        async with headrace.ShareConsumer("127.0.0.1:1", **settings):
            raise AssertionError("it cannot be entered")

    with pytest.raises(headrace.Unreachable, match=r"127\.0\.0\.1:1"):
        asyncio.run(story())


def test_a_broker_without_share_groups(broker: ScriptedBroker) -> None:
    share = ShareScript(broker)
    broker.versions[HEARTBEAT] = (0, 0)

    async def story() -> None:
        async with consumer(share):
            raise AssertionError("it cannot be entered")

    with pytest.raises(headrace.Unsupported, match="share groups need"):
        asyncio.run(story())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"group": ""}, "name of the group"),
        ({"topics": []}, "no topic"),
        ({"max_poll_records": 0}, "max_poll_records"),
        ({"max_in_hand": 0}, "max_in_hand"),
        ({"renew_s_max": -1}, "renew_s_max"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"group": "g", "topics": ["t"], **settings}
    with pytest.raises(ValueError, match=told):
        headrace.ShareConsumer("127.0.0.1:1", **given)
    with pytest.raises(TypeError, match="one name"):
        headrace.ShareConsumer("127.0.0.1:1", group="g", topics="jobs")
    with pytest.raises(TypeError, match=r"ShareConsumer\(\) got an unexpected keyword"):
        headrace.ShareConsumer("127.0.0.1:1", **given | {"topic": "jobs"})


def test_a_commit_that_is_cancelled_leaves_the_failure_to_the_next(share: ShareScript) -> None:
    share.records.append(0)

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            share.ack_codes.extend([15, 15, 15, 121])  # three times there is no coordinator
            record.accept()
            committing = asyncio.create_task(opened.commit())
            await asyncio.sleep(0)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            with pytest.raises(headrace.LockLost):
                await opened.commit()

    asyncio.run(story())


def test_each_of_two_commits_at_once_raises_the_failure(share: ShareScript) -> None:
    share.records.append(0)

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            share.ack_codes.append(121)
            record.accept()
            found = await asyncio.gather(opened.commit(), opened.commit(), return_exceptions=True)
            assert [type(one) for one in found] == [headrace.LockLost] * 2

    asyncio.run(story())


def test_closing_twice_at_once_returns_when_verdicts_are_sent(share: ShareScript) -> None:
    share.records.append(0)

    async def story() -> None:
        async with consumer(share) as opened:
            (record,) = await opened.poll()
            share.ack_codes.append(15)
            record.accept()
            closing = asyncio.create_task(opened.close())
            await asyncio.sleep(0)
            await opened.close()
            assert [first for first, *_ in share.said] == [0]
            await closing

    asyncio.run(story())


def test_closing_on_two_threads_at_once_loses_no_verdict(share: ShareScript) -> None:
    share.records.append(0)
    opened = headrace.SyncShareConsumer(share.broker.address, group="g", topics=["t"])
    opened.start()
    (record,) = opened.poll()
    share.ack_codes.extend([15] * 10)
    record.accept()
    with ThreadPoolExecutor(2) as threads:
        for closing in [threads.submit(opened.close) for _ in range(2)]:
            closing.result(30)
    assert [first for first, *_ in share.said] == [0]
