"""CutDataFolder (20930), of Headrace's own: a consistent view of the data folder, for a backup.

The caller first makes the folder `.backup/<name>` in the broker's data folder, which shows that it
may read the records; the broker fills it with links to the files of its logs and a list of them.
The message is flexible (compact types, request header 2, response header 1), version 0.
"""

from dataclasses import dataclass

from headrace.wire.structs import Int16, MaybeText, Struct, Text

KEY, VERSION = 20930, 0
FOLDER = ".backup"
LIST = "files"
"""The name of the list in the folder of a cut: a size in bytes and a path a line."""


@dataclass(frozen=True, slots=True)
class CutDataFolderRequest(Struct):
    """Cut the data folder into the folder `.backup/<name>`."""

    name: Text


@dataclass(frozen=True, slots=True)
class CutDataFolderResponse(Struct):
    """The outcome.

    `error_code` is 42 when the folder does not exist in this broker's data folder or is not empty,
    56 when a log is damaged or the disk fails.
    """

    error_code: Int16
    error_message: MaybeText
