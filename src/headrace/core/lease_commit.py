"""The commit of a lease: what becomes of everything that it acquired up to a number."""

from collections.abc import Mapping

from headrace.core.leases import Lease, LeaseCommitted, verdicts
from headrace.core.machine import Decided
from headrace.core.shard_words import Committed, Event
from headrace.core.share_partition import SharePartition
from headrace.core.share_words import Policy, ShareKey, Verdict


def committed(
    lease: Lease, seq: int, partitions: Mapping[ShareKey, SharePartition], policy: Policy
) -> Decided[Event]:
    """Settle what the session still holds of all numbers up to `seq`, as it staged it."""
    events: list[Event] = []
    settled = dict.fromkeys(Verdict, 0)
    wanted = 0
    for number, acquisition in sorted(lease.acquisitions.items()):
        if number > seq:
            break
        wanted += sum(len(held.span) for held in acquisition.held)
        for held, staged in verdicts(acquisition):
            partition = partitions.get(held.key)
            if partition is None:
                continue
            for run in partition.claimable(staged.span, held.deliveries, lease.holder):
                events.append(partition.settle(run, staged.verdict, policy, staged.reason))
                settled[staged.verdict] += len(run.span)
    if seq > lease.committed:
        events.append(LeaseCommitted(lease.key, seq))
    reply = Committed(
        settled[Verdict.ACCEPT],
        settled[Verdict.RELEASE],
        settled[Verdict.REJECT],
        wanted - sum(settled.values()),
    )
    return Decided(events, reply)
