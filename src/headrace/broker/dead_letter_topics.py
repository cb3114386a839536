"""The topics that dead letters go to: which may, and what one is made like (KIP-1191).

A topic is created where its name says what it is, by errors.deadletterqueue.topic.name.prefix. It
is like its source in partitions and in the size of its records, and keeps them until somebody
removes them: a copy has the time of its record, so that retention could take it at once.
"""

from headrace.broker.config import Config
from headrace.broker.partitions import Partition
from headrace.broker.topics import Topics
from headrace.core.catalog import CreateTopic, Topic
from headrace.core.errors import Refused
from headrace.core.types import WallMs

_HEADERS_BYTES = 64 * 1024  # room for what a copy has beside its record
_MESSAGE_BYTES_MAX = 2**31 - 1


async def target_topic(topics: Topics, name: str, source: Partition) -> Topic | str:
    """The topic of a name, created where that may be; or why it cannot take the dead letters."""
    if not name:
        return "the group has no dead-letter topic any more"
    topic: Topic | Refused | None = topics.catalog.topics.get(name)
    if topic is None:
        trouble = _not_created(topics.config, name)
        if trouble is not None:
            return f"{name} {trouble}"
        configs = _made_like(topics.config, source)
        partitions = source.topic.partitions
        topic = await topics.create(CreateTopic(name, topics.new_id(), partitions, configs))
    if isinstance(topic, Refused):
        return f"{name} cannot be created: {topic.message}"
    trouble = _unfit(topic, topics, source)
    return topic if trouble is None else f"{name} {trouble}"


def _not_created(config: Config, name: str) -> str | None:
    """Why a topic that does not exist is not created; None when it may be."""
    if not config.dead_letter_auto_create:
        return (
            "does not exist: create it, or set "
            "errors.deadletterqueue.auto.create.topics.enable=true"
        )
    if not name.startswith(config.dead_letter_prefix):
        return (
            "does not exist, and is not created by itself because its name does not begin with "
            f"{config.dead_letter_prefix} (errors.deadletterqueue.topic.name.prefix): create it, "
            "or name another one"
        )
    return None


def _made_like(config: Config, source: Partition) -> dict[str, str]:
    needed = source.settings.message_max_bytes + _HEADERS_BYTES
    made = {
        "errors.deadletterqueue.group.enable": "true",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    if needed > config.message_max_bytes:
        made["max.message.bytes"] = str(min(needed, _MESSAGE_BYTES_MAX))
    return made


def _unfit(topic: Topic, topics: Topics, source: Partition) -> str | None:
    if topic.internal:
        return "is internal: name another one"
    if topic.id == source.topic.id:
        return "is the very topic that the records come from: name another one"
    partition = topics.partitions.get(topic.id, 0)
    if partition is None:
        return None
    if not partition.settings.dead_letter_enable:
        return (
            "does not allow dead letters: set its errors.deadletterqueue.group.enable to true, or "
            "name another one"
        )
    if "compact" in partition.settings.cleanup_policy:
        return (
            "is compacted, which removes dead letters of equal keys: set its cleanup.policy to "
            "delete, or name another one"
        )
    return None


def outlived(timestamp: int, target: Partition, now: WallMs) -> str | None:
    """Why retention would take the copy of a record of that time at once; None where it would not.

    Of what is younger the topic's own settings say how long it stays.
    """
    settings = target.settings
    if "delete" not in settings.cleanup_policy or settings.timestamp_type != "CreateTime":
        return None
    if settings.retention_ms < 0 or timestamp < 0 or now - timestamp <= settings.retention_ms:
        return None
    return (
        f"a copy as old as its record would be removed at once by retention.ms="
        f"{settings.retention_ms} of {target.topic.name}: raise that, or name another topic"
    )
