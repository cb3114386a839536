"""Journal records of leases, as they were written before verdicts were staged by part."""

from uuid import UUID

from headrace.core.leases import Acquisition, Held, Lease, LeaseRestored, LeaseStaged, Staged
from headrace.core.share_words import ShareKey, Verdict
from headrace.core.types import Span
from headrace.log.lease_records import lease_key, restored

LEASE = ("work", "checkpoint")
KEY = ShareKey("work", UUID(int=7), 3)
# Two acquisitions, the first with a staged range, by the code of version 0.
WITHOUT_PARTS = bytes.fromhex(
    "00000000000400000000000000010208666c6967687473030000000000000002"
    "0200000000000000000000000000000007000000030000000000000005000000"
    "0000000009000202000000000000000000000000000000070000000300000000"
    "0000000600000000000000070304626164000000000000000302000000000000"
    "0000000000000000000700000003000000000000000a000000000000000c0001"
    "0100"
)


def test_a_lease_of_before_parts_is_read() -> None:
    staged = Staged(KEY, Span(6, 7), Verdict.REJECT, "bad")
    found = restored(LEASE, WITHOUT_PARTS)
    assert found == LeaseRestored(
        LEASE,
        4,
        1,
        ("flights",),
        (
            (2, Acquisition((Held(KEY, Span(5, 9), 2),), {"": (staged,)}, 4)),
            (3, Acquisition((Held(KEY, Span(10, 12), 1),), {}, 4)),
        ),
    )


def test_what_it_had_staged_stays_until_a_new_driver_stages() -> None:
    lease = Lease(LEASE)
    lease.apply(restored(LEASE, WITHOUT_PARTS))
    said = (Staged(KEY, Span(8, 8), Verdict.RELEASE),)
    lease.apply(LeaseStaged(LEASE, 2, "task 1", 4, said))
    assert set(lease.acquisitions[2].parts) == {"", "task 1"}
    lease.apply(LeaseStaged(LEASE, 2, "task 1", 5, said))
    assert lease.acquisitions[2].parts == {"task 1": said}


def test_the_key_is_the_same() -> None:
    assert lease_key(LEASE) == bytes.fromhex("51a40004776f726b000a636865636b706f696e74")
