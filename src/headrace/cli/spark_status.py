"""What `headrace spark status` prints: a row a query, whichever way it reads."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from headrace.cli.ending import end_with
from headrace.cli.table import Table
from headrace.cli.times import in_words
from headrace.client.connection import Cluster
from headrace.client.spark_queries import SparkQuery, list_spark_queries


def show(cluster: Cluster, groups: Sequence[str], *, with_quiet: bool, as_json: bool) -> None:
    """Print the queries of the groups, of all without any.

    Raises: Trouble at the end when the broker cannot read a partition of a query that is shown;
    otherwise as `Cluster`.
    """
    found = list_spark_queries(cluster, groups)
    shown = [one for one in found if with_quiet or one.state != "quiet" or one.lapsed]
    if as_json:
        for one in shown:
            known = asdict(one)
            del known["errors"]  # stderr has them
            print(json.dumps(known))
    elif shown:
        _table(shown)
    else:
        where = f" through {', '.join(groups)}" if groups else ""
        quiet = f"; quiet ones, shown with --all: {len(found)}" if found else ""
        print(f"No Spark query reads{where}{quiet}.")
    end_with(
        "spark status", list(dict.fromkeys(str(error) for one in shown for error in one.errors))
    )


def _table(shown: Sequence[SparkQuery]) -> None:
    table = Table(
        ("GROUP", 15), ("MODE", 6), ("STATE", 8), ("SEEN", 12), ("BATCH", 8), ("HELD", 8),
        ("LAPSED", 8), ("LAG", 10), ("SESSION", 32), ("TOPICS", 0),
    )  # fmt: skip
    for one in shown:
        seen = None if one.seen_ms is None else f"{in_words(one.seen_ms)} ago"
        table.add(
            one.group, one.mode, one.state, seen, one.batch, one.held,
            one.lapsed, one.lag, one.session, ",".join(one.topics),
        )  # fmt: skip
    table.show()
