"""`headrace log dump` shows the lists of archived records, which Kafka's tool passes over."""

import json
from uuid import UUID

from headrace.cli.log_records import share_group_state
from headrace.core.archived import ArchivedRun, PageForgotten, PageListed
from headrace.core.share_words import ShareKey
from headrace.core.types import MemberId, Span, WallMs
from headrace.log.archived_records import page_record

KEY = ShareKey("work", UUID(int=1), 2)


def test_a_page_is_shown_run_by_run() -> None:
    run = ArchivedRun(4, Span(10, 12), 5, "not JSON", MemberId("me"), WallMs(7))
    key, value, _ = page_record(PageListed(KEY, 3, (run,), 5, 9))
    shown_key, shown = share_group_state(key, value, 0)
    assert shown_key is not None
    assert shown is not None
    about = {"groupId": "work", "topicId": "AAAAAAAAAAAAAAAAAAAAAQ", "partition": 2, "page": 3}
    assert json.loads(shown_key) == {"type": "20907", "data": about}
    archived = {
        "number": 4, "firstOffset": 10, "lastOffset": 12, "deliveryCount": 5,
        "reason": "not JSON", "member": "me", "timestamp": 7,
    }  # fmt: skip
    assert json.loads(shown) == {"data": {"dropped": 9, "archived": [archived]}}


def test_a_page_that_is_no_more_is_null() -> None:
    key, value, _ = page_record(PageForgotten(KEY, 3))
    assert share_group_state(key, value, 0)[1] == "null"
