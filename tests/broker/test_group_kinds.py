"""A name is a share group's or a consumer group's, also where both are asked for at once."""

from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker.handlers import alter_share_group_offsets, share_group_heartbeat
from headrace.broker.request import Raw, Request
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.group_words import Commit, Offset
from headrace.core.types import MemberId
from headrace.wire import codec

from .inside_rig import Inside, play

ORDERS = uuid4()
COMMIT = Commit("g", MemberId(""), None, -1, (Offset("orders", 0, 7, -1, "", ORDERS),))
JOIN = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rack_id": None,
    "subscribed_topic_names": ("orders",),
}
START = {"partition_index": 0, "start_offset": 0}
RESET = {"group_id": "g", "topics": ({"topic_name": "orders", "partitions": (START,)},)}


@pytest.mark.parametrize(
    ("api", "search", "key", "version", "asked"),
    [
        (share_group_heartbeat, "new_starts", 76, 1, JOIN),
        (alter_share_group_offsets, "starts_by_duration", 91, 0, RESET),
    ],
)
def test_what_became_a_consumer_group_meanwhile_is_none_for_sharing(
    monkeypatch: pytest.MonkeyPatch,
    api: ModuleType,
    search: str,
    key: int,
    version: int,
    asked: dict[str, Any],
) -> None:
    """Where a subscription begins may have to be searched for in the logs, which takes a while."""
    searched = getattr(api, search)

    async def scene(broker: Inside) -> None:
        services = broker.services
        made = await services.topics.create(CreateTopic("orders", ORDERS, 1, {}))
        assert isinstance(made, Topic)

        async def slowly(*words: Any) -> Any:
            await services.groups.ask("g", COMMIT)
            return await searched(*words)

        monkeypatch.setattr(api, search, slowly)
        body = codec.encode_request(key, version, asked)
        request = Request(key, version, 1, "client", "::1", 1, memoryview(body))
        answer = await api.handle(request, services)
        assert not isinstance(answer, Raw)
        assert answer["error_code"] == 69
        assert not services.shares.exists("g")

    play(Inside, scene)
