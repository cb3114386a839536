"""Names that a share group cannot have."""

from headrace.broker.services import Services
from headrace.core.errors import Refused, Why
from headrace.core.share_words import NAME_BYTES_MAX


def misnamed(name: str, services: Services) -> Refused | None:
    """Refuse to administer a name that is none, too long for the journal, or of another kind."""
    if not name:
        return Refused(Why.INVALID_GROUP, "The group id is empty.")
    if len(name.encode()) > NAME_BYTES_MAX:
        return Refused(Why.INVALID_GROUP, f"The group id has more than {NAME_BYTES_MAX} bytes.")
    if of_consumers(name, services) is not None:
        return Refused(Why.WRONG_GROUP_TYPE, f"Group {name} is not a share group.")
    return None


def of_consumers(name: str, services: Services) -> Refused | None:
    """Refuse the name of a consumer group, and one that its settings give to such a group."""
    if services.groups.is_consumer_group(name):
        told = f"Group {name} is a consumer group, or its group.type says so."
        return Refused(Why.WRONG_GROUP_TYPE, told)
    return None
