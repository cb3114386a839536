"""What holds for all tests."""

import pytest
from hypothesis import HealthCheck, settings

from headrace.core.shard_words import Outside
from headrace.core.share_group import Timing, TopicView
from headrace.core.share_words import Policy

# How fast a machine is decides no test: neither a deadline an example, nor a slow data generation.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


class _Nowhere:
    """What a shard may know of the outside: defaults, and not one topic."""

    def policy(self, group: str) -> Policy:
        return Policy()

    def timing(self, group: str) -> Timing:
        return Timing()

    def starts_earliest(self, group: str) -> bool:
        return True

    def topic(self, name: str) -> TopicView | None:
        return None


@pytest.fixture(scope="session")
def nowhere() -> Outside:
    """The outside of a shard that only replays."""
    return _Nowhere()
