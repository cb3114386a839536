"""What tools ask of replicas and their leaders, where every partition has one replica, here.

ElectLeaders (43), AlterPartitionReassignments (45) and ListPartitionReassignments (46).
Source: KIP-460, KIP-455; ReplicationControlManager (4.3).
"""

from collections.abc import Sequence
from typing import Any

from headrace.broker.errors import Code
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services

_ELECT, _REASSIGN, _LIST = 43, 45, 46


async def handle(request: Request, services: Services) -> Answer:
    message, portions = request.message(), services.budgets.portions
    if request.api_key == _ELECT:
        return {
            "error_code": Code.NONE,
            "replica_election_results": await _elected(message, services),
        }
    if request.api_key == _LIST:
        return {"error_code": Code.NONE, "error_message": None, "topics": []}
    reassignments = await services.budgets.by_topic(
        (
            (topic.name, partition.partition_index, partition.replicas)
            for topic in message.topics
            for partition in topic.partitions
        ),
        topics=(topic.name for topic in message.topics),
    )
    responses = [
        {
            "name": name,
            "partitions": [
                {"partition_index": index} | _said(*_reassigned(name, index, replicas, services))
                async for index, replicas in portions(partitions.items())
            ],
        }
        async for name, partitions in portions(reassignments.items())
    ]
    return {"error_code": Code.NONE, "error_message": None, "responses": responses}


async def _elected(message: Any, services: Services) -> list[dict[str, Any]]:
    """Return a result for each requested partition.

    Where all are requested (null), each topic has those that got another leader: none.
    """
    portions, topics = services.budgets.portions, message.topic_partitions
    if topics is None:
        names = list(services.catalog.topics)  # of now: topics may come and go in a pause
        return [{"topic": name, "partition_result": []} async for name in portions(names)]
    elections = await services.budgets.by_topic(
        ((topic.topic, index, None) for topic in topics for index in topic.partitions),
        topics=(topic.topic for topic in topics),
    )
    return [
        {
            "topic": name,
            "partition_result": [
                {"partition_id": index} | _said(*_election(name, index, services))
                async for index in portions(indexes)
            ],
        }
        async for name, indexes in portions(elections.items())
    ]


def _election(topic: str, index: int, services: Services) -> tuple[Code, str]:
    if services.partition(topic, index) is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
    return Code.ELECTION_NOT_NEEDED, "the only replica leads"


def _reassigned(
    topic: str, index: int, replicas: Sequence[int] | None, services: Services
) -> tuple[Code, str | None]:
    here = (services.config.node_id,)
    if services.partition(topic, index) is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
    if replicas is None:
        return Code.NO_REASSIGNMENT_IN_PROGRESS, "nothing is being moved"
    if tuple(replicas) != here:
        return Code.INVALID_REPLICA_ASSIGNMENT, f"broker {here[0]} is the only one"
    return Code.NONE, None


def _said(code: Code, message: str | None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message}
