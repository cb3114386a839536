"""What is told of groups that were to be deleted, and of errors with groups."""

import json
from collections.abc import Mapping

from headrace.cli.ending import Trouble, end_with
from headrace.client.errors import BrokerError
from headrace.wire.error_codes import ErrorCode

_REMEDIES = {
    "NON_EMPTY_GROUP": "stop its members",
    "GROUP_ID_NOT_FOUND": "name one of --list",
    "INVALID_GROUP_ID": "name one of --list",
}


def show_deleted(
    results: Mapping[str, BrokerError | None], *, kind: str, command: str, as_json: bool
) -> None:
    """Print what became of each group. Raises: Trouble when some were not deleted."""
    done = [f"'{group}'" for group, error in results.items() if error is None]
    if as_json:
        for group, error in results.items():
            print(json.dumps({"group": group, "deleted": error is None, "error": told(error)}))
    elif len(done) == len(results):
        print(f"Deletion of requested {kind} groups ({', '.join(done)}) was successful.")
    elif done:
        print(f"\nThese {kind} groups were deleted successfully: {', '.join(done)}")
    end_with(
        command,
        [
            f"Group '{group}' could not be deleted due to: {with_remedy(error)}"
            for group, error in results.items()
            if error is not None
        ],
    )


def with_remedy(error: BrokerError) -> str:
    """What the broker said, and what to do about it."""
    remedy = _REMEDIES.get(error.name)
    return error.message if remedy is None else f"{error.message.rstrip('.')}; {remedy}"


def for_share_group(error: BrokerError, group: str) -> Exception:
    """What to raise of an error with a share group: where there is none by the name, the remedy."""
    if error.code != ErrorCode.group_id_not_found:
        return error
    said = error.message.rstrip(".")
    if "not a share group" in said:
        return Trouble(f"{said}; see consumer-groups --describe --group {group}")
    return Trouble(f"{said}; see share-groups --list")


def told(error: BrokerError | None) -> dict[str, str] | None:
    """An error as JSON has it."""
    return None if error is None else {"name": error.name, "message": error.message}
