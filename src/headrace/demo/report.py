"""What a run prints at its end: the figures, where the records went, and the account."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headrace.demo.account import Account
from headrace.demo.evidence import reasons
from headrace.demo.figures import Delay
from headrace.demo.run import DEAD_LETTERS, GROUP, Outcome

REASONS_SHOWN_MAX = 6


def show(outcome: Outcome, console: Console) -> None:
    """Print the outcome; what does not add up comes last."""
    console.print(_delays("Delays by carrier, minutes", "carrier", outcome.figures.carriers))
    console.print(_delays("Delays by scheduled hour, minutes", "hour", outcome.figures.hours))
    console.print(_rejected(outcome))
    console.print(_account(outcome.account))
    produced, plan = outcome.produced, outcome.plan
    console.print(
        f"produced {_per_second(produced.confirmed, produced.seconds)}, "
        f"processed {_per_second(produced.confirmed, outcome.query_seconds)}, "
        f"broker killed {outcome.kills} time{'s' if outcome.kills != 1 else ''}, "
        f"{outcome.seconds:.0f} s in all",
        highlight=False,
    )
    console.print(
        f"{outcome.figures.redelivered:,} flights came on a later delivery, most of them after the "
        "simulated outage",
        highlight=False,
    )
    console.print(f"Parquet {plan.parquet}\nchart   {plan.chart}", soft_wrap=True, highlight=False)
    for complaint in outcome.account.complaints:
        console.print(f"[bold red]does not add up:[/] {complaint}", highlight=False)
    console.print(verdict(outcome.account), highlight=False)


def verdict(account: Account) -> str:
    """The account in one line."""
    if not account.closes:
        return "[bold red]The account does not close.[/]"
    return (
        f"[bold green]The account closes:[/] {account.produced:,} produced = "
        f"{account.accepted:,} accepted + {account.rejected:,} rejected, each offset once; "
        "SPSO = SPEO = log end"
    )


def _delays(title: str, label: str, delays: list[Delay]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column(label, no_wrap=True)
    for heading in ("flights", "dep. mean", "median", "arr. mean", "median"):
        table.add_column(heading, justify="right")
    for one in delays:
        table.add_row(
            one.label,
            f"{one.flights:,}",
            *(
                "" if value is None else f"{value:.1f}"
                for value in (
                    one.mean_departure,
                    one.median_departure,
                    one.mean_arrival,
                    one.median_arrival,
                )
            ),
        )
    return table


def _rejected(outcome: Outcome) -> Table:
    table = Table(
        title=f"Rejected by {GROUP}, kept in {DEAD_LETTERS}", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("reason")
    table.add_column("records", justify="right")
    counted = reasons(outcome.dead)
    for reason, count in counted[:REASONS_SHOWN_MAX]:
        table.add_row(reason, f"{count:,}")
    if others := sum(count for _, count in counted[REASONS_SHOWN_MAX:]):
        table.add_row("other reasons", f"{others:,}")
    return table


def _account(account: Account) -> Table:
    table = Table(title="Account", title_justify="left", box=SIMPLE_HEAD, show_footer=True)
    totals = (account.produced, account.accepted, account.rejected)
    headings = ("produced", "accepted", "rejected", "Parquet", "DLQ")
    footers = (*(f"{total:,}" for total in totals), "", "")
    table.add_column("partition")
    for heading, footer in zip(headings, footers, strict=True):
        table.add_column(heading, footer, justify="right")
    table.add_column("SPSO=SPEO=end", justify="right")
    for number, one in account.partitions.items():
        counts = (one.produced, len(one.accepted), len(one.archived))
        places = (len(one.processed), len(one.dead))
        ends = dict.fromkeys((one.start, one.end, one.log_end))
        table.add_row(
            str(number),
            *(f"{count:,}" for count in counts + places),
            " / ".join(f"{end:,}" for end in ends),
        )
    return table


def _per_second(records: int, seconds: float) -> str:
    return f"{records:,} records in {seconds:.1f} s ({records / max(seconds, 0.001):,.0f}/s)"
