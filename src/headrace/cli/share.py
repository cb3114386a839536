"""`headrace share`: look into share groups, from which nothing is taken by it.

Each command is a module `share_<command>` with `register(group)`.
"""

import typer

from headrace.cli import share_archived, share_browse, share_explain


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Look into share groups: what is in flight, what became of a record.")
    group.callback()(_share)
    share_browse.register(group)
    share_archived.register(group)
    share_explain.register(group)
    app.add_typer(group, name="share", no_args_is_help=True)


def _share() -> None:
    """Look into share groups: what is in flight, what became of a record."""
