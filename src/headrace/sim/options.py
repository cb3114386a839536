"""What a seed draws before a history begins: how the broker is set up, and which faults there are.

Each kind of fault is left out of about half of the histories: what one fault hides another shows.
"""

from dataclasses import dataclass, fields, replace
from random import Random

from headrace.broker.config import Config
from headrace.sim import damage, disk

GROUPS = ("blue", "green")
DEAD_LETTERS = "dead-letters"
SHARE_SESSION_MS, _HEARTBEAT_MS = 3000, 700
_CROWD = 2  # members that a share group may have where more want to join
_MEMBERS_MAX, _SESSIONS_MAX = 200, 2000  # Kafka's defaults
_PRUNE_MS, _COLD_MS, _JOURNAL_SEGMENT_BYTES = 250, 400, 2048
_FOCUSES = ("queues", "queues", "records", "records", "both")
_CLEANER_MS, _OFFSETS_CHECK_MS = 300, 2000
CONSUMER_SESSION_MS, CONSUMER_SESSION_MS_MAX = 3000, 4500
OFFSETS_RETENTION_MINUTES = 1
_RETENTION_CHECK_MS, _RETENTION_MS = 400, 1200
IN_FLIGHT_MAX = 5  # as stock idempotent producers have
UNREAD_MS = 1500  # after which a peer that reads nothing is disconnected


@dataclass(frozen=True, slots=True)
class Options:
    """The setting of one history. Probabilities are per occasion, durations in virtual time."""

    fsync: bool
    shards: int
    updates_per_snapshot: int
    lock_ms: int
    limit: int
    window: int
    partitions: int
    segment_bytes: int
    earliest: tuple[str, ...]
    dead_letters: bool
    groups: int
    members: int
    leases: int
    seconds: int

    kills: bool
    power_cuts: bool
    stops: bool
    sync_errors: bool
    write_errors: bool
    read_errors: bool
    full_disks: bool
    slow_disks: bool
    suspends: bool
    clock_set: bool
    lost_answers: bool
    vanishing: bool
    stalling: bool
    strange_epochs: bool
    repeats: bool
    deletions: bool
    retention: bool
    topic_changes: bool
    prunes: bool
    administers: bool

    queues: bool  # share groups and leases
    records: bool  # idempotent producers, consumer groups, compaction
    producers: int
    consumers: tuple[str, ...]  # a group of each of these protocols
    misuses: bool
    cleans: bool
    hostile: bool
    buggifies: bool
    damages: bool
    rots: bool  # damage while the broker runs
    damage_kinds: tuple[str, ...] = damage.KINDS
    power_cut_fates: tuple[str, ...] = disk.FATES

    # Actors and links; see `_with_actors`.
    rough_links: bool = False  # requests in pieces, cut connections, slow clients
    static_members: bool = False
    lifecycles: bool = False  # topics that are created, grown and deleted while in use
    reconfigures: bool = False  # settings change at run time
    transactions: bool = False  # a transactional producer, which has to be refused
    lies: bool = False  # produced batches whose headers do not match their records
    unread: bool = False  # a peer that does not read its responses
    stays: bool = False  # members of groups stay for longer than offsets are kept
    counts_work: bool = False  # every step of the broker is measured against the bound
    share_off: bool = False  # share groups are switched off; only without queues
    seeks: bool = False  # a reader that looks up records by time
    crowds: bool = False  # share groups may have fewer members than there are
    in_flight: int = 1  # most requests that an idempotent producer has in flight
    points: tuple[str, ...] = ()  # of rare behaviours that are always chosen, with `buggifies`
    kills_at: tuple[str, ...] = ()  # rare behaviours amid which the broker is killed at times

    @classmethod
    def drawn(cls, rng: Random) -> "Options":
        """The options of a seed."""
        fsync = rng.random() < 0.6
        focus = rng.choice(_FOCUSES)

        def maybe() -> bool:
            return rng.random() < 0.5

        damages = maybe()

        return cls(
            fsync=fsync,
            shards=rng.choice((1, 1, 2)),
            updates_per_snapshot=rng.choice((0, 1, 3, 500)),
            lock_ms=rng.choice((1000, 2000, 5000)),
            limit=rng.randint(2, 5),
            window=rng.choice((100, 2000)),
            partitions=rng.randint(1, 2),
            segment_bytes=rng.choice((1024, 2048, 1 << 20)),
            earliest=tuple(group for group in GROUPS if maybe()),
            dead_letters=maybe(),
            groups=rng.randint(1, 2),
            members=rng.randint(1, 3),
            leases=rng.choice((0, 0, 1)),
            seconds=rng.choice((1, 2, 4)),
            kills=damages or maybe(),
            power_cuts=(fsync or focus == "records") and maybe(),  # else see `_with_actors`
            stops=damages or maybe(),
            sync_errors=maybe(),
            write_errors=maybe(),
            read_errors=rng.random() < 0.25,
            full_disks=maybe(),
            slow_disks=maybe(),
            suspends=maybe(),
            clock_set=maybe(),
            lost_answers=maybe(),
            vanishing=maybe(),
            stalling=maybe(),
            strange_epochs=maybe(),
            repeats=maybe(),
            deletions=maybe(),
            retention=rng.random() < 0.25,
            topic_changes=rng.random() < 0.3,
            prunes=maybe(),
            administers=maybe(),
            queues=focus != "records",
            records=focus != "queues",
            producers=rng.randint(1, 2),
            consumers=rng.choice((("classic",), ("consumer",), ("classic", "consumer"))),
            misuses=maybe(),
            cleans=rng.random() < 0.7,
            hostile=maybe(),
            buggifies=maybe(),
            damages=damages,
            rots=maybe(),
        )._with_actors(rng)

    def _with_actors(self, rng: Random) -> "Options":
        """Return the options with further actors, drawn after all others."""

        def maybe() -> bool:
            return rng.random() < 0.5

        return replace(
            self,
            rough_links=maybe(),
            static_members=rng.random() < 0.4,
            lifecycles=maybe(),
            reconfigures=maybe(),
            transactions=rng.random() < 0.25,
            lies=maybe(),
            unread=rng.random() < 0.3,
            stays=maybe(),
            counts_work=rng.random() < 0.05,
            share_off=rng.random() < 0.3 and not self.queues,
            seeks=rng.random() < 0.3,
            power_cuts=maybe() if self.queues and not self.fsync else self.power_cuts,
            in_flight=rng.randint(1, IN_FLIGHT_MAX),
            crowds=rng.random() < 0.2 and self.queues,
        )

    def config(self) -> Config:
        """The broker's settings."""
        pruning = Config(
            share_state_prune_ms=_PRUNE_MS,
            share_cold_snapshot_ms=_COLD_MS,
            share_history_ms=0,
            share_state_segment_bytes=_JOURNAL_SEGMENT_BYTES,
        )
        return replace(
            pruning if self.prunes else Config(),
            durability="fsync" if self.fsync else "os",
            share_group_enable=not self.share_off,
            share_state_partitions=self.shards,
            share_updates_per_snapshot=self.updates_per_snapshot,
            share_lock_ms=self.lock_ms,
            share_lock_ms_min=1000,
            share_session_timeout_ms=SHARE_SESSION_MS,
            share_session_timeout_ms_min=SHARE_SESSION_MS,
            share_group_size_max=self.share_members_max,
            share_sessions_max=self.share_sessions_max,
            share_heartbeat_ms=_HEARTBEAT_MS,
            share_heartbeat_ms_min=_HEARTBEAT_MS,
            share_delivery_count_limit=self.limit,
            share_record_locks=self.window,
            segment_bytes=self.segment_bytes,
            retention_check_ms=_RETENTION_CHECK_MS,
            index_interval_bytes=100,
            cleaner_backoff_ms=_CLEANER_MS,
            cleaner_dedupe_bytes=1 << 20,
            offsets_retention_minutes=OFFSETS_RETENTION_MINUTES,
            offsets_retention_check_ms=_OFFSETS_CHECK_MS,
            group_session_ms_min=1000,
            consumer_session_timeout_ms=CONSUMER_SESSION_MS,
            consumer_session_timeout_ms_min=CONSUMER_SESSION_MS,
            consumer_heartbeat_ms=_HEARTBEAT_MS,
            consumer_heartbeat_ms_min=_HEARTBEAT_MS,
            unread_ms=UNREAD_MS,
        )

    @property
    def share_members_max(self) -> int:
        """Return how many members a share group may have."""
        return _CROWD if self.crowds else _MEMBERS_MAX

    @property
    def share_sessions_max(self) -> int:
        """Return how many share sessions may be open."""
        return _CROWD if self.crowds else _SESSIONS_MAX

    @property
    def offsets_retention_us(self) -> int:
        """Return how long offsets are kept of which no member makes use."""
        return OFFSETS_RETENTION_MINUTES * 60_000_000

    @property
    def topic_settings(self) -> dict[str, str]:
        """Those of the topics that are consumed."""
        return {"retention.ms": str(_RETENTION_MS)} if self.retention else {}

    def __str__(self) -> str:
        """The options in words: numbers by name, faults when they are on."""
        told = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool):
                told += [field.name] if value else []
            else:
                told.append(f"{field.name}={value}")
        return " ".join(told)
