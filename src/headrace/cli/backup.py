"""`headrace backup`: back up a data folder, also while the broker runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connect import BOOTSTRAP_SERVER, BootstrapServer, CommandConfig, connect
from headrace.cli.data_tools import DATA_DIR, DataDir, JsonObject, running, size_text
from headrace.cli.ending import Trouble, error_text

if TYPE_CHECKING:
    from headrace.folder.store import Backup, Store

_Target = Annotated[Path, typer.Argument(metavar="TARGET", help="The folder of backups.")]
_List = Annotated[bool, typer.Option("--list", help="List the backups.")]
_Verify = Annotated[
    str | None,
    typer.Option("--verify", metavar="ID", help="Verify a backup; `latest` for the last."),
]
_Delete = Annotated[str | None, typer.Option("--delete", metavar="ID", help="Delete a backup.")]
_LATEST = "latest"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(backup)


def backup(
    target: _Target,
    data_dir: DataDir = DATA_DIR,
    bootstrap_server: BootstrapServer = BOOTSTRAP_SERVER,
    list_: _List = False,
    verify: _Verify = None,
    delete: _Delete = None,
    as_json: JsonObject = False,
    command_config: CommandConfig = None,
) -> None:
    """Back up a data folder to TARGET, also while the broker runs.

    Files that TARGET has already are not copied again. Every file is verified; a damaged one ends
    the backup with exit code 1.

    headrace backup /backups/orders --data-dir /var/lib/headrace
    """
    with running("backup", "backing up") as progress:
        from headrace.client.data_folder_cut import cut_data_folder
        from headrace.client.errors import Unreachable
        from headrace.folder import backup as backups
        from headrace.folder.store import Store

        if sum((list_, verify is not None, delete is not None)) > 1:
            raise Trouble("give one of --list, --verify, --delete")
        store = Store(target)
        if list_:
            _print_list(store, as_json=as_json)
        elif verify is not None:
            found = backups.verify(store, None if verify == _LATEST else verify, progress)
            _print(found, as_json=as_json, text=f"backup {found.id} is intact")
        elif delete is not None:
            store.require()
            with store.locked(exclusive=True):
                freed = store.delete(delete)
            text = f"deleted backup {delete}: {size_text(freed)} freed"
            print(json.dumps({"id": delete, "freed_bytes": freed}) if as_json else text)
        else:

            def request_cut(name: str) -> None:
                with connect(bootstrap_server, command_config) as cluster:
                    try:
                        cut_data_folder(cluster, name)
                    except Unreachable as error:
                        reason = error.reason
                        text = error_text(reason) if isinstance(reason, OSError) else str(reason)
                        raise Trouble(
                            f"{data_dir} is in use, and no broker responds at {bootstrap_server} "
                            f"({text}); give the address of the Kafka listener of the "
                            "broker with --bootstrap-server"
                        ) from error

            made = backups.make(data_dir, store, request_cut, progress)
            text = (
                f"backup {made.backup.id}: {len(made.backup.files)} files, "
                f"{size_text(made.backup.size)}, {size_text(made.new_bytes)} of them new"
            )
            _print(made.backup, as_json=as_json, text=text, new_bytes=made.new_bytes)


def _print_list(store: "Store", *, as_json: bool) -> None:
    store.require()
    for id_ in store.ids():
        one = store.load(id_)
        how = "while the broker ran" if one.online else "of a stopped broker"
        _print(one, as_json=as_json, text=f"{id_}  {size_text(one.size)}  {how}")


def _print(found: "Backup", *, as_json: bool, text: str, **more: Any) -> None:
    about = {
        "id": found.id,
        "created": found.created.isoformat(),
        "cluster": found.cluster,
        "online": found.online,
        "files": len(found.files),
        "bytes": found.size,
        **more,
    }
    print(json.dumps(about) if as_json else text)
