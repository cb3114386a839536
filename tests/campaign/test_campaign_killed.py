"""The damage campaign over folders of killed brokers."""

import pytest
from tests.campaign.parts import check_part, parts


@pytest.mark.parametrize("part", parts(clean=False))
def test_no_damage_changes_anything_silently(part: int) -> None:
    check_part(part)
