"""What tools ask of replicas and their leaders, where every partition has one replica, here.

ElectLeaders (43), AlterPartitionReassignments (45) and ListPartitionReassignments (46).
Source: KIP-460, KIP-455; ReplicationControlManager (4.3).
"""

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
    responses = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": asked.partition_index}
                | _said(*_reassigned(topic.name, asked, services))
                async for asked in portions(topic.partitions)
            ],
        }
        async for topic in portions(message.topics)
    ]
    return {"error_code": Code.NONE, "error_message": None, "responses": responses}


async def _elected(message: Any, services: Services) -> list[dict[str, Any]]:
    """What was asked for by name; of all partitions (null), those that changed: none."""
    portions = services.budgets.portions
    return [
        {
            "topic": topic.topic,
            "partition_result": [
                {"partition_id": index} | _said(*_election(topic.topic, index, services))
                async for index in portions(topic.partitions)
            ],
        }
        async for topic in portions(message.topic_partitions or ())
    ]


def _election(topic: str, index: int, services: Services) -> tuple[Code, str]:
    if services.partition(topic, index) is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
    return Code.ELECTION_NOT_NEEDED, "the only replica leads"


def _reassigned(topic: str, asked: Any, services: Services) -> tuple[Code, str | None]:
    here = (services.config.node_id,)
    if services.partition(topic, asked.partition_index) is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
    if asked.replicas is None:
        return Code.NO_REASSIGNMENT_IN_PROGRESS, "nothing is being moved"
    if tuple(asked.replicas) != here:
        return Code.INVALID_REPLICA_ASSIGNMENT, f"broker {here[0]} is the only one"
    return Code.NONE, None


def _said(code: Code, message: str | None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message}
