"""The demo from end to end: broker, producer, query, a SIGKILL on the way, and the account."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.client.admin import create_topic as create_dead_letter_topic
from headrace.client.admin import set_group_configs
from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.core.runs import State
from headrace.demo.account import Account, settle
from headrace.demo.chart import draw
from headrace.demo.evidence import DeadLetter, collect, dead_letters
from headrace.demo.figures import Figures, figures
from headrace.demo.flights import Kind, broken_among, payloads
from headrace.demo.pipeline import start_query
from headrace.demo.plan import Kill, Killer, Plan, Stage
from headrace.demo.producing import Produced, create_topic, produce
from headrace.demo.server import Server
from headrace.spark import local_session
from headrace.wire.leases import SharePartition

TOPIC, DEAD_LETTERS, GROUP = "flights", "flights.dlq", "delays"
LOOK_EVERY_S = 0.25


class PipelineFailed(Exception):
    """The query ended by itself, or nothing was finished for too long."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to; it succeeded when the account closes."""

    plan: Plan
    account: Account
    figures: Figures
    produced: Produced
    dead: Sequence[DeadLetter]
    kills: int
    query_seconds: float
    seconds: float


def run(plan: Plan, console: Console, session: SparkSession | None = None) -> Outcome:
    """Run the demo in `plan.data_dir`, which must be empty or absent.

    With `session` that session is used and left open.

    Raises: FileExistsError, ServerDied, ProducingFailed, PipelineFailed, ClientError.
    """
    if plan.data_dir.exists() and any(plan.data_dir.iterdir()):
        raise FileExistsError(f"{plan.data_dir} is not empty; choose another folder")
    began = time.monotonic()
    console.print(f"data folder [bold]{plan.data_dir}[/] (kept)")
    with (
        Server(plan.data_dir, port=plan.port) as server,
        _bars(console) as bars,
        Cluster(server.bootstrap) as cluster,
    ):
        console.print(f"broker on [bold]{server.bootstrap}[/], log in {server.log_file}")
        killer = Killer(server, plan.kills, lambda kill, s: _say_killed(console, kill, s))
        produced = _produce(plan, server, cluster, killer, bars)
        with nullcontext(session) if session else _session(console) as spark:
            query_seconds = _query(plan, server, cluster, killer, bars, spark, produced)
            console.print("reading the journal, the Parquet rows and the dead letters")
            dead = dead_letters(cluster, DEAD_LETTERS)
            evidence = collect(
                cluster,
                group=GROUP,
                topic=TOPIC,
                parquet=plan.parquet,
                produced=produced.by_partition,
                dead=dead,
            )
            found = figures(spark, plan.parquet)
    unprocessable = produced.kinds[Kind.BROKEN] + produced.kinds[Kind.CANCELLED]
    draw(found, plan.chart)
    return Outcome(
        plan,
        settle(evidence, unprocessable=unprocessable),
        found,
        produced,
        dead,
        killer.done,
        query_seconds,
        time.monotonic() - began,
    )


def _produce(
    plan: Plan, server: Server, cluster: Cluster, killer: Killer, bars: Progress
) -> Produced:
    create_topic(server.bootstrap, TOPIC, plan.partitions)
    create_dead_letter_topic(
        cluster,
        DEAD_LETTERS,
        plan.partitions,
        configs={"errors.deadletterqueue.group.enable": "true"},
    )
    set_group_configs(cluster, GROUP, {"errors.deadletterqueue.topic.name": DEAD_LETTERS})
    total = plan.flights + broken_among(plan.flights)
    bar = bars.add_task(f"producing to {TOPIC}", total=total)

    def on_progress(confirmed: int) -> None:
        bars.update(bar, completed=confirmed)
        killer.reached(Stage.PRODUCE, confirmed / total)

    return produce(
        server.bootstrap,
        TOPIC,
        payloads(plan.seed, plan.flights),
        on_progress,
        stalled_after_s=plan.stalled_after_s,
    )


def _query(
    plan: Plan,
    server: Server,
    cluster: Cluster,
    killer: Killer,
    bars: Progress,
    spark: SparkSession,
    produced: Produced,
) -> float:
    """Run the query until every record is finished; returns the seconds it took."""
    bar = bars.add_task(f"query over share group {GROUP}", total=produced.confirmed)
    began = time.monotonic()
    query = start_query(
        spark,
        bootstrap=server.bootstrap,
        topic=TOPIC,
        group=GROUP,
        output=plan.parquet,
        checkpoint=plan.checkpoint,
        records_per_batch=plan.records_per_batch,
    )

    def look() -> int | None:
        server.check()
        partitions = describe(cluster, GROUP)
        done = sum(map(finished, partitions))
        bars.update(bar, completed=done)
        killer.reached(Stage.QUERY, done / max(produced.confirmed, 1))
        return None if done == produced.confirmed and all(map(settled, partitions)) else done

    try:
        _wait(query, look, plan.stalled_after_s)
        seconds = time.monotonic() - began
    finally:
        query.stop()
    return seconds


def _wait(query: StreamingQuery, look: Callable[[], int | None], stalled_after_s: float) -> None:
    """Until `look` says None; what it says otherwise must change now and then."""
    before, moved_at = -1, time.monotonic()
    while (done := look()) is not None:
        if not query.isActive:
            raise PipelineFailed(f"the query ended by itself: {query.exception()}")
        now = time.monotonic()
        if done != before:
            before, moved_at = done, now
        elif now - moved_at > stalled_after_s:
            raise PipelineFailed(f"no record was finished for {stalled_after_s:.0f} s; {done} are")
        time.sleep(LOOK_EVERY_S)


def finished(partition: SharePartition) -> int:
    """How many records from offset 0 on are accepted or archived."""
    over = (State.ACKNOWLEDGED, State.ARCHIVED)
    in_window = (run.last - run.first + 1 for run in partition.in_flight if run.state in over)
    return partition.start + sum(in_window)


def settled(partition: SharePartition) -> bool:
    """Whether nothing is left to deliver and nothing in flight."""
    return partition.start == partition.end == partition.log_end


def _session(console: Console) -> SparkSession:
    with console.status("starting Spark"):
        return local_session("headrace demo")


def _say_killed(console: Console, kill: Kill, seconds: float) -> None:
    console.print(
        f"[bold red]SIGKILL[/] at {kill.fraction:.0%} of the {kill.stage.value} stage; the broker "
        f"listened again {seconds:.2f} s after its restart"
    )


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
