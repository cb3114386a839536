"""The supervisor: it starts, kills and restarts a process, and tells why one died unasked."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.server import Server, ServerDied

LISTENER = """
import argparse, socket, sys, time
options = argparse.ArgumentParser()
options.add_argument("--port", type=int)
options.add_argument("--data-dir")
options.add_argument("--set", action="append")
it = options.parse_args()
print("listening with", it.set, flush=True)  # first: it may be killed once it listens
sock = socket.create_server(("127.0.0.1", it.port), reuse_port=False)
time.sleep(30)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    stub = tmp_path / "stub.py"
    stub.write_text(LISTENER)
    made = Server(tmp_path, settings={"a.b": "1"}, command=(sys.executable, str(stub)))
    yield made
    made.stop()


def test_it_starts_is_killed_and_starts_again_on_the_same_port(server: Server) -> None:
    server.start()
    server.check()
    server.kill()
    server.start()
    server.check()
    server.stop()
    assert server.log_file.read_text().count("listening with ['a.b=1']") == 2


def test_a_death_is_reported_with_the_last_words(tmp_path: Path) -> None:
    dying = Server(tmp_path, command=(sys.executable, "-c", "raise SystemExit('no disk left')"))
    with pytest.raises(ServerDied, match=r"(?s)ended with code 1.*no disk left"):
        dying.start()


def test_a_broker_that_does_not_listen_is_not_waited_for_forever(tmp_path: Path) -> None:
    deaf = Server(tmp_path, command=(sys.executable, "-c", "import time; time.sleep(30)"))
    with pytest.raises(ServerDied, match="did not listen"):
        deaf.start(timeout_s=0.3)


def test_stopping_twice_is_stopping_once(server: Server) -> None:
    server.start()
    server.stop()
    server.stop()
    server.check()
