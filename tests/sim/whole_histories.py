"""Bugs that whole histories find, each with the focus in which it comes into play."""

from collections.abc import Callable

import pytest

from headrace.sim.disk import NOTHING, WHOLE

from . import (
    planted,
    planted_groups,
    planted_membership,
    planted_records,
    planted_requests,
    planted_shares,
)
from .focus import (
    CRASHES,
    GROUPS,
    LEASES,
    PIPELINES,
    QUEUES,
    QUIET,
    RECORDS,
    UNSYNCED,
    Focus,
    finding,
    is_sound,
)

Plant = Callable[[pytest.MonkeyPatch], None]

# A lease alone, whose long commands wait between their portions: there the broker is killed.
PORTIONS: Focus = {
    **LEASES, "members": 0, "limit": 8, "partitions": 2, "lock_ms": 2000, "seconds": 8,
    "buggifies": True, "points": ("lease.portion", "portion.late"), "kills_at": ("portion.late",),
}  # fmt: skip
# Members acknowledge what others may have by now.
STALE: Focus = {"strange_epochs": True, "repeats": True, "stalling": True}
# Of two power cuts one takes the end of a log, the next one what was made of that.
TWO_CUTS: Focus = {
    "members": 1, "seconds": 16, "slow_disks": True, "power_cut_fates": (NOTHING, WHOLE),
}  # fmt: skip

SHARES: dict[Plant, Focus] = {
    planted.lock_expiry_forgets_the_delivery: QUEUES | {"stalling": True, "limit": 5},
    planted.deliveries_lost_in_recovery: QUEUES | CRASHES,
    planted.start_beyond_an_unfinished_record: QUEUES,
    planted.anybody_may_acknowledge: QUEUES | STALE,
    planted.snapshots_without_finished_records: QUEUES | CRASHES | {"updates_per_snapshot": 0},
    planted.resets_not_written: QUEUES | CRASHES | {"administers": True},
    planted.deletions_not_written: QUEUES | CRASHES | {"administers": True},
    planted.rejected_records_vanish: QUEUES | {"dead_letters": True},
    planted.answers_before_the_sync: QUEUES | {"power_cuts": True},
    planted.acceptance_before_the_sync: QUEUES | {"power_cuts": True},
    planted_records.one_delivery_too_many: QUEUES | {"limit": 2},
    planted_records.session_epochs_are_not_compared: QUEUES | {"strange_epochs": True},
    planted_records.locks_end_early: QUEUES
    | {"stalling": True, "members": 6, "limit": 8, "seconds": 8},
    planted_shares.rejected_records_are_delivered_again: QUEUES,
    planted_shares.released_records_are_finished: QUEUES,
    planted_shares.accepted_records_are_delivered_again: QUEUES,
    planted_shares.deliveries_are_not_counted: QUEUES,
    planted_shares.acquired_batches_are_out_of_order: QUEUES,
    planted_shares.added_partitions_begin_at_their_end: QUEUES | {"topic_changes": True},
    planted_shares.state_is_not_recovered: QUEUES | CRASHES,
    planted_shares.lock_durations_of_groups_are_ignored: QUEUES
    | {"reconfigures": True, "stalling": True},
    planted_shares.share_groups_may_commit: QUEUES | {"strange_epochs": True},
    planted_shares.lost_ends_are_ignored: QUEUES | UNSYNCED,
    planted_shares.states_of_lost_records_stay: QUEUES | UNSYNCED,
    planted_shares.lost_ends_are_not_synced: QUEUES | UNSYNCED | TWO_CUTS,
}
# More members of both groups than there may be, at a time.
CROWDS: Focus = QUEUES | {"crowds": True, "groups": 2}
MEMBERSHIP: dict[Plant, Focus] = {
    planted_membership.share_groups_have_no_size: CROWDS,
    planted_membership.share_sessions_have_no_bound: CROWDS,
    planted_membership.member_epochs_are_not_compared: QUEUES | {"strange_epochs": True},
    planted_membership.silent_members_stay: QUEUES
    | {"stalling": True, "lock_ms": 5000, "seconds": 16},
    planted_membership.share_partitions_without_a_member: QUEUES,
    planted_membership.assignments_ignore_subscriptions: QUEUES,
    planted_membership.one_member_has_every_partition: QUEUES | {"partitions": 2},
    planted_membership.browsers_release_records: QUEUES,
    planted_membership.elapsed_locks_archive_nothing: QUEUES | {"stalling": True, "limit": 2},
}
OF_LEASES: dict[Plant, Focus] = {
    planted.commits_not_written: LEASES | CRASHES,
    planted.parts_not_written: LEASES | CRASHES | {"members": 0, "limit": 8},
    planted.delays_forgotten: LEASES,
    planted.lists_not_written: QUEUES | CRASHES,
    planted.leases_keep_what_was_reset: LEASES | {"administers": True},
    planted.pruned_too_far: QUEUES | CRASHES | {"prunes": True},
    planted_records.old_drivers_are_served: LEASES,
    planted_shares.leases_keep_lost_records: LEASES | UNSYNCED,
    planted_shares.portions_are_written_apart: PORTIONS,
    planted_shares.commits_are_answered_before_their_last_portion: PORTIONS,
}
OFFSETS: dict[Plant, Focus] = {
    planted_records.lower_commits_are_ignored: GROUPS,
    planted_records.commits_are_not_written: GROUPS | CRASHES,
    planted_groups.metadata_is_not_written: GROUPS | CRASHES,
    planted_records.expired_offsets_come_back: QUIET,
    planted_records.subscribed_offsets_expire: QUIET,
    planted_records.offsets_never_expire: QUIET,
    planted_records.unsubscribed_offsets_stay: QUIET,
    planted_records.old_generations_may_commit: GROUPS | {"misuses": True},
    planted_records.two_members_own_a_partition: GROUPS,
    planted_groups.empty_groups_expire_by_the_commit: QUIET,
    planted_groups.first_emptiness_counts: QUIET | {"consumers": ("classic",)},
    planted_groups.emptiness_is_forgotten_in_recovery: QUIET,
    planted_groups.rebalancing_groups_lose_offsets: QUIET | {"consumers": ("classic",)},
    planted_groups.unsubscribed_offsets_expire_at_once: QUIET,
    planted_groups.custom_retention_is_ignored: QUIET,
    planted_groups.standalone_offsets_never_expire: QUIET,
    planted_groups.standalone_offsets_expire_together: QUIET,
    planted_groups.expired_groups_stay: QUIET,
    planted_groups.offset_deletions_are_not_written: QUIET,
    planted_groups.offsets_in_use_are_deleted: QUIET,
    planted_groups.active_groups_keep_every_offset: QUIET,
    planted_groups.unknown_groups_have_deletions: QUIET,
    planted_groups.other_types_are_read_as_consumers: QUIET,
    planted_groups.offsets_of_other_types_expire: QUIET,
    planted_groups.later_subscriptions_are_not_read: QUIET | {"consumers": ("classic",)},
    planted_groups.deletions_are_not_metered: QUIET,
    planted_groups.expirations_are_not_metered: QUIET,
    planted_groups.commits_are_not_metered: QUIET,
    planted_groups.rebalances_are_not_metered: QUIET,
    planted_groups.protocol_types_are_mixed: QUIET,
    planted_groups.partitions_without_a_member: GROUPS | {"consumers": ("consumer",)},
    planted_groups.followers_are_assigned_nothing: GROUPS | {"consumers": ("classic",)},
    planted_groups.returning_members_rebalance: GROUPS
    | {"consumers": ("classic",), "static_members": True},
    planted_groups.old_static_members_are_served: GROUPS
    | {"consumers": ("classic",), "static_members": True},
    planted_groups.instances_are_shared: GROUPS
    | {"consumers": ("consumer",), "static_members": True},
    planted_groups.places_of_absent_members_are_given_away: GROUPS
    | {"consumers": ("consumer",), "static_members": True},
}
LOGS: dict[Plant, Focus] = {
    planted_records.old_sequences_are_accepted: RECORDS | {"misuses": True, "seconds": 4},
    planted_records.gaps_are_accepted: RECORDS | {"misuses": True},
    planted_records.old_epochs_may_write: RECORDS | {"misuses": True},
    planted_records.duplicates_are_appended: RECORDS | {"misuses": True},
    planted_records.four_batches_are_remembered: RECORDS | {"lost_answers": True},
    planted_records.only_the_newest_batch_is_a_duplicate: PIPELINES | {"lost_answers": True},
    planted_records.batches_behind_a_failed_one_are_appended: PIPELINES | {"full_disks": True},
    planted_records.producers_forgotten_in_recovery: RECORDS | CRASHES | {"misuses": True},
    planted_records.producer_ids_given_twice: RECORDS | {"fsync": False, "power_cuts": True},
    planted_records.compaction_drops_the_newest: RECORDS | CRASHES | {"cleans": True, "seconds": 4},
    planted_records.tombstones_go_at_once: RECORDS | {"cleans": True, "seconds": 4},
    planted_records.tombstones_delete_later_values: RECORDS | {"cleans": True, "seconds": 4},
    planted_records.cleaned_timestamps_shift: RECORDS | {"cleans": True, "seconds": 4},
    planted_records.headers_are_dropped: RECORDS,
    planted_records.look_ups_by_time_are_late: RECORDS | {"seeks": True},
    planted_records.produce_is_answered_before_the_sync: RECORDS | {"power_cuts": True},
    planted_records.deleted_records_come_back: RECORDS | CRASHES | {"deletions": True},
    planted_records.one_record_too_many_is_deleted: RECORDS | {"deletions": True},
    planted_records.reads_skip_a_batch: RECORDS,
    planted_records.torn_appends_stay: RECORDS
    | {"full_disks": True, "producers": 4, "members": 0, "seconds": 4},
    planted_records.recovery_cuts_the_last_batch: RECORDS | CRASHES,
    planted_records.all_damage_counts_as_torn: RECORDS | CRASHES | {"damages": True},
    planted_records.missing_segments_pass: RECORDS
    | CRASHES
    | {"damages": True, "segment_bytes": 1024},
    planted_records.missing_folders_pass: RECORDS | CRASHES | {"damages": True},
    planted_records.retention_trusts_the_wall_clock: RECORDS | {"clock_set": True},
}
REQUESTS: dict[Plant, Focus] = {
    planted_requests.deleted_topics_come_back: RECORDS
    | CRASHES
    | {"lifecycles": True, "seconds": 4},
    planted_requests.added_partitions_are_not_written: RECORDS | CRASHES | {"lifecycles": True},
    planted_requests.settings_are_not_written: RECORDS
    | CRASHES
    | {"reconfigures": True, "seconds": 4},
    planted_requests.settings_out_of_bounds_are_accepted: RECORDS | {"reconfigures": True},
    planted_requests.unknown_topics_are_answered_at_once: RECORDS
    | {"lifecycles": True, "full_disks": True, "write_errors": True, "seconds": 4},
    planted_requests.transactional_ids_are_accepted: RECORDS | {"transactions": True},
    planted_requests.refused_producers_have_no_response: RECORDS | {"transactions": True},
    planted_requests.control_batches_are_accepted: RECORDS | {"transactions": True},
    planted_requests.records_are_not_looked_at: RECORDS | {"lies": True},
    planted_requests.checksums_are_not_compared: RECORDS | {"lies": True},
    planted_requests.checksums_count_only_with_acks: RECORDS | {"hostile": True, "seconds": 4},
    planted_requests.dead_letters_cannot_be_fetched: QUEUES | {"dead_letters": True},
    planted_requests.share_groups_stay_switched_on: RECORDS | {"share_off": True},
    planted_requests.unread_peers_stay: RECORDS | {"unread": True, "seconds": 8},
    planted_requests.large_answers_are_encoded_on_the_loop: RECORDS
    | {"hostile": True, "counts_work": True, "seconds": 4},
}
FOCUS: dict[Plant, Focus] = SHARES | MEMBERSHIP | OF_LEASES | OFFSETS | LOGS | REQUESTS


def check_is_found(plant: Plant) -> None:
    """Search for a history that shows the bug, and run it without the bug."""
    chosen = FOCUS[plant]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        found = finding(chosen)
    assert found is not None, f"no history shows {plant.__name__}"
    assert is_sound(found[0], chosen), f"seed {found[0]} fails without the bug"


def name(plant: Plant) -> str:
    """Return the name of a test of a bug."""
    return plant.__name__
