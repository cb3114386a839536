"""When offsets expire, as the broker foretells it over the wire."""

from typing import Any

import pytest

from headrace.broker.handlers import offset_expiry as handler
from headrace.client.admin import create_topic, set_group_configs
from headrace.client.connection import Cluster
from headrace.client.errors import Unsupported
from headrace.client.group_offsets import alter_group_offsets
from headrace.client.offset_expiry import offset_expiry
from headrace.wire import offset_expiry as wire

_MS_PER_MINUTE = 60_000


def test_a_retention_of_the_group_counts(real: Cluster) -> None:
    create_topic(real, "t", 2)
    alter_group_offsets(real, "g", {("t", 0): 0, ("t", 1): 0}).check()
    set_group_configs(real, "g", {"offsets.retention.minutes": "90"})
    found = offset_expiry(real, "g")
    assert list(found) == [("t", 0), ("t", 1)]
    for one in found.values():
        assert one.expires_at == one.committed_at + 90 * _MS_PER_MINUTE
        assert one.reason == "no member subscribes to the topic"


def test_pages_are_put_together(real: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(real, "many", 5)
    places = [("many", partition) for partition in range(5)]
    alter_group_offsets(real, "pages", dict.fromkeys(places, 0)).check()
    monkeypatch.setattr(handler, "OFFSETS_MAX", 2)
    assert list(offset_expiry(real, "pages")) == places


def test_a_group_that_does_not_exist_has_none(real: Cluster) -> None:
    assert offset_expiry(real, "nobody") == {}


def test_another_broker_does_not_tell(script: Any, cluster: Cluster) -> None:
    with pytest.raises(Unsupported, match=r"the forecast of offsets needs Headrace$"):
        offset_expiry(cluster, "g")


def test_every_fate_has_words() -> None:
    from headrace.client.offset_expiry import _REASONS

    assert set(_REASONS) == set(wire.Fate)
