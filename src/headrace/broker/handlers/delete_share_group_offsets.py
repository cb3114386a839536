"""DeleteShareGroupOffsets (92): have a share group without members forget topics. KIP-932."""

from collections.abc import Sequence

from headrace.broker.errors import Code, error_code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.broker.share_group_names import misnamed
from headrace.core.errors import Refused
from headrace.core.shard_words import DeleteShareOffsets


async def handle(request: Request, services: Services) -> Answer:
    message = request.message()
    names = tuple(dict.fromkeys(topic.topic_name for topic in message.topics))
    answers: Sequence[Refused | None] | Refused | None = misnamed(message.group_id, services)
    if answers is None:
        await services.shares.open_topics(names)
        command = DeleteShareOffsets(message.group_id, names)
        answers = await services.shares.administer(command, request.asked_by())
    if isinstance(answers, Refused):
        told = {"error_code": error_code(answers), "error_message": answers.message}
        return told | {"responses": ()}
    assert answers is not None
    topics = services.catalog.topics
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "responses": [
            {
                "topic_name": name,
                "topic_id": topics[name].id if name in topics else None,
                "error_code": error_code(refused),
                "error_message": refused and refused.message,
            }
            for name, refused in zip(names, answers, strict=True)
        ],
    }
