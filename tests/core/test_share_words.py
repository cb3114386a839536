"""Keys of share-partitions, and what sorts them."""

import random
from uuid import UUID

from headrace.core.share_words import ShareKey, within_group


def test_share_partitions_of_a_group_are_in_the_order_of_their_keys() -> None:
    rng = random.Random(1)
    topics = [UUID(int=number) for number in (0, 1, 255, 256, 1 << 127, (1 << 128) - 1)]
    topics += [UUID(int=rng.getrandbits(128)) for _ in range(100)]
    keys = [ShareKey("g", topic, index) for topic in topics for index in (0, 1, 9, 10, 999)]
    rng.shuffle(keys)
    assert sorted(keys, key=within_group) == sorted(keys)
