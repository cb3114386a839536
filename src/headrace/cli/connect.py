"""How commands reach a cluster: the options they share, and a client that tells early."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.ending import Trouble
from headrace.cli.properties import load

if TYPE_CHECKING:
    from headrace.client.connection import Cluster

BOOTSTRAP_SERVER = "127.0.0.1:9092"
ADDRESS_VARIABLE = "HEADRACE_BOOTSTRAP_SERVERS"
_CONTACT_S = 3.0
_PATIENCE_S = 30.0
_PLAINTEXT = "PLAINTEXT"

BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        envvar=ADDRESS_VARIABLE,
        show_envvar=False,
        help="Brokers to connect to.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config", metavar="FILE", help="Properties file with settings of the client."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__

        print(f"headrace {__version__}")
        raise typer.Exit


Version = Annotated[  # acted on by its callback
    bool,
    typer.Option(
        "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
]


def is_given(context: typer.Context, parameter: str) -> bool:
    """Whether somebody gave the option of a parameter, also with the value it has by default."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def require_address(context: typer.Context, action: str) -> None:
    """Refuse to destroy anything at the default address, whatever broker that is.

    Args:
        action: the option that destroys, for the message.

    Raises: Trouble unless the option or the environment variable names the brokers.
    """
    source = context.get_parameter_source("bootstrap_server")
    if source is None or source.name in {"DEFAULT", "DEFAULT_MAP"}:
        raise Trouble(
            f"{action} needs the address of the cluster: add --bootstrap-server HOST:PORT or set "
            f"{ADDRESS_VARIABLE}; for a broker on this machine, --bootstrap-server "
            f"{BOOTSTRAP_SERVER}"
        )


def data_folder(context: typer.Context, folder: Path) -> Path:
    """The folder of --data-dir, which is read instead of asking a broker.

    Raises: Trouble when there is no such folder, a newer release wrote it, or a broker is named as
        well.
    """
    from headrace.log import small_files
    from headrace.log.api import CorruptFileError, NewerFormatError
    from headrace.log.manifest import NAME, PROPERTIES

    for name in ("bootstrap_server", "command_config"):
        if is_given(context, name):
            told = f"--data-dir reads files and asks no broker; leave --{name.replace('_', '-')}"
            raise Trouble(f"{told} or --data-dir out")
    if not folder.is_dir():
        raise Trouble(f"--data-dir: there is no folder {folder}; give the data folder of a broker")
    for name in (NAME, PROPERTIES):
        try:
            small_files.parsed(name, (folder / name).read_bytes(), unsealed=True)
        except NewerFormatError as error:
            raise Trouble(f"--data-dir: {error}") from error
        except (OSError, CorruptFileError):
            continue  # journals of damaged folders are read as far as they go
    return folder


def client_settings(config: Path | None) -> dict[str, str]:
    """The settings in the file of --command-config; none without one.

    Raises: Trouble when it cannot be read or asks for encryption or authentication.
    """
    settings = {} if config is None else load(config)
    require_plaintext(settings)
    return settings


def require_plaintext(settings: dict[str, str]) -> None:
    """Raises: Trouble when a connection as these settings ask for it cannot be made."""
    protocol = settings.get("security.protocol", _PLAINTEXT)
    if protocol.upper() != _PLAINTEXT:
        raise Trouble(
            f"security.protocol={protocol} is not supported; connect to a {_PLAINTEXT} listener"
        )


def connect(
    bootstrap_server: str,
    config: Path | None = None,
    *,
    client_id: str = "headrace-cli",
    patience_s: float = _PATIENCE_S,
) -> "Cluster":
    """A client that gives up after a few seconds when no broker answers, or after `patience_s`.

    Raises: Trouble for an address or a file that makes no sense.
    """
    import logging

    from headrace.client.connection import Cluster, Patience

    logging.basicConfig(level=logging.WARNING, format="headrace: %(message)s")
    client_settings(config)
    try:
        return Cluster(
            bootstrap_server,
            client_id=client_id,
            patience=Patience(total_s=patience_s, contact_s=min(patience_s, _CONTACT_S)),
        )
    except ValueError as error:
        raise Trouble(f"--bootstrap-server: {error}") from error
