"""`headrace log dump`: what stands in the files of a partition, as kafka-dump-log; no broker.

Options and text are those of Kafka 4.3's DumpLogSegments. Damage is one line on stderr each, and
exit code 1.
"""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.connect import Json, Version
from headrace.cli.ending import Trouble, end_with, ending

_BYTES_MAX = 2_147_483_647

_Files = Annotated[
    str, typer.Option(metavar="A,B,...", help="Files: .log, .index, .timeindex, .snapshot.")
]
_PrintData = Annotated[bool, typer.Option("--print-data-log", help="Print keys and payloads.")]
_Deep = Annotated[bool, typer.Option("--deep-iteration", help="Print each record of a batch.")]
_KeyDecoder = Annotated[str | None, typer.Option(help="What keys are, e.g. Long.")]
_ValueDecoder = Annotated[str | None, typer.Option(help="What payloads are, e.g. Long.")]
_Share = Annotated[
    bool, typer.Option("--share-group-state-decoder", help="Records of __share_group_state.")
]
_Metadata = Annotated[
    bool, typer.Option("--cluster-metadata-decoder", help="Records of __cluster_metadata.")
]
_Offsets = Annotated[bool, typer.Option("--offsets-decoder", help="Records of __consumer_offsets.")]
_SkipMetadata = Annotated[
    bool, typer.Option("--skip-record-metadata", help="Print key and payload alone.")
]
_Sanity = Annotated[
    bool, typer.Option("--index-sanity-check", help="Check indexes, print no entries.")
]
_Verify = Annotated[
    bool, typer.Option("--verify-index-only", help="Check that indexes lead to their batches.")
]
_MaxBytes = Annotated[int, typer.Option(min=1, help="Read no more of a segment.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(help="Look into the files of a log; no broker is asked.")
    group.callback()(_log)
    group.command()(dump)
    app.add_typer(group, name="log", no_args_is_help=True)


def _log() -> None:
    """Look into the files of a log; no broker is asked."""


def dump(
    files: _Files,
    print_data_log: _PrintData = False,
    deep_iteration: _Deep = False,
    key_decoder_class: _KeyDecoder = None,
    value_decoder_class: _ValueDecoder = None,
    offsets_decoder: _Offsets = False,
    share_group_state_decoder: _Share = False,
    cluster_metadata_decoder: _Metadata = False,
    skip_record_metadata: _SkipMetadata = False,
    index_sanity_check: _Sanity = False,
    verify_index_only: _Verify = False,
    max_bytes: _MaxBytes = _BYTES_MAX,
    as_json: Json = False,
    _version: Version = False,
) -> None:
    """Print segments, indexes and producer snapshots; text and options are kafka-dump-log's.

    headrace log dump --print-data-log --files orders-0/00000000000000000000.log
    """
    with ending("log dump"):
        from headrace.cli.decoders import decoder
        from headrace.cli.log_dump import Dump, Options, Raw
        from headrace.cli.log_records import cluster_metadata, share_group_state
        from headrace.cli.offsets_records import consumer_offsets

        raw = Raw(
            decoder("--key-decoder-class", key_decoder_class),
            decoder("--value-decoder-class", value_decoder_class),
        )
        asked = {
            "--offsets-decoder": offsets_decoder and consumer_offsets,
            "--share-group-state-decoder": share_group_state_decoder and share_group_state,
            "--cluster-metadata-decoder": cluster_metadata_decoder and cluster_metadata,
        }
        decoders = [one for one in asked.values() if one]
        if len(decoders) > 1:
            raise Trouble(f"give one of {', '.join(asked)}")
        decode = decoders[0] if decoders else raw.decode
        chosen = any((key_decoder_class, value_decoder_class, decoders, print_data_log))
        options = Options(
            decode=decode,
            prints_data=chosen,
            is_deep=chosen or deep_iteration,
            skips_metadata=skip_record_metadata,
            checks_only=index_sanity_check or verify_index_only,
            follows_index=verify_index_only,
            bytes_max=max_bytes,
            as_json=as_json,
        )
        dumping = Dump(options)
        for name in filter(None, (part.strip() for part in files.split(","))):
            dumping.file(Path(name))
        troubles = dumping.unread
        if dumping.damages:
            were = "1 damage was" if dumping.damages == 1 else f"{dumping.damages} damages were"
            troubles = [*troubles, f"{were} found; see the lines above"]
        end_with("log dump", troubles)
