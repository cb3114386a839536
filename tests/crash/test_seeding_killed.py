"""SIGKILL of the broker while it adds partitions to a topic whose groups have reset policies.

Whatever the moment, after the restart each group has an offset for every partition there is: 0 for
those that were added, since nobody had produced to them.
"""

import random
import socket
import struct
import time
from pathlib import Path

from headrace.client.admin import create_topic
from headrace.client.configs import set_group_configs
from headrace.client.connection import Cluster
from headrace.client.group_offsets import alter_group_offsets, list_group_offsets
from headrace.client.topics import describe_topics
from headrace.demo.server import Server
from headrace.wire import codec

KILLS, STEP = 8, 100
GROUPS = {"a": "latest", "b": "safe_latest", "c": "earliest"}
TOPIC = "work"
CREATE_PARTITIONS = 37


def test_new_partitions_are_seeded_whole(tmp_path: Path) -> None:
    chance, totals = random.Random(0), list[int]()
    with Server(tmp_path) as server:
        with Cluster(server.bootstrap) as cluster:
            create_topic(cluster, TOPIC, 1)
            for group, policy in GROUPS.items():
                set_group_configs(cluster, group, {"auto.offset.reset": policy})
                alter_group_offsets(cluster, group, {(TOPIC, 0): 0}).check()
        for kill in range(KILLS):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(growing(STEP * (kill + 1)))
                if kill < KILLS - 1:
                    time.sleep(chance.uniform(0, 0.06))
                else:
                    assert connection.recv(1), "the last kill comes behind the answer"
                server.kill()
            server.start()
            with Cluster(server.bootstrap) as cluster:
                totals.append(len(describe_topics(cluster, [TOPIC])[TOPIC].partitions))
                for group in GROUPS:
                    found = list_group_offsets(cluster, group)
                    offsets = {index: one.offset for (_, index), one in found.items()}
                    assert offsets == dict.fromkeys(range(totals[-1]), 0), (kill, group)
    assert totals == sorted(totals)
    assert totals[-1] == STEP * KILLS


def growing(total: int) -> bytes:
    """A frame that asks for so many partitions; nobody waits for the answer."""
    topic = {"name": TOPIC, "count": total, "assignments": None}
    fields = {"topics": (topic,), "timeout": 1000, "validate_only": False}
    body = bytes(codec.encode_request(CREATE_PARTITIONS, 3, fields))
    head = struct.pack(">hhih", CREATE_PARTITIONS, 3, 1, -1) + b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body
