"""What a process that is nothing but a broker sets for itself, and what that rests on."""

import gc
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import headrace
from headrace.broker.server import Connection

Connecting = Callable[..., Any]
TIMEOUT = 10


def test_a_process_of_its_own_freezes_what_stays() -> None:
    code = (
        "import gc; from headrace.broker.tuning import tune_process; "
        "assert gc.get_freeze_count() == 0; tune_process(); before = gc.get_freeze_count(); "
        "assert before > 1000; kept = [[number] for number in range(5000)]; gc.collect(1); "
        "assert gc.get_freeze_count() == before; gc.collect(); "
        "assert gc.get_freeze_count() > before + 5000"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT * 3)


def test_a_process_of_its_own_collects_young_objects_seldom() -> None:
    code = (
        "import gc; from headrace.broker.tuning import tune_process; tune_process(); gc.collect(); "
        "before = gc.get_stats(); kept = [[number] for number in range(4000)]; "
        "assert gc.get_stats() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT * 3)


def test_a_connection_that_is_gone_needs_no_collector(connecting: Connecting) -> None:
    """What a full collection left is frozen: in a cycle it would stay for ever."""

    def connections() -> dict[int, weakref.ref[Connection]]:
        return {id(one): weakref.ref(one) for one in gc.get_objects() if type(one) is Connection}

    with headrace.Broker() as broker, connecting(broker) as connect:
        gc.collect()
        before = connections()
        wire = connect()
        wire.create("orders")
        gc.disable()
        try:
            (mine,) = (one for key, one in connections().items() if key not in before)
            wire.close()
            until = time.monotonic() + TIMEOUT
            while mine() is not None:
                assert time.monotonic() < until, "it is still there"
                time.sleep(0.01)
        finally:
            gc.enable()
