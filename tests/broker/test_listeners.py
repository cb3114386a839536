"""Listeners hear of the commands that concern them, in the order in which they were added."""

from headrace.broker.listeners import Listeners

Heard = list[tuple[str, list[int | str]]]


def test_who_asked_for_kinds_is_told_of_commands_that_have_one_and_of_all_their_events() -> None:
    heard: Heard = []
    listeners: Listeners[int | str] = Listeners()
    listeners.append(lambda events: heard.append(("words", [*events])), (str, bytes))
    listeners.append(lambda events: heard.append(("all", [*events])))
    listeners.append(lambda events: heard.append(("numbers", [*events])), (int,))
    listeners.tell([1, 2])
    listeners.tell([1, "a"])
    assert heard == [
        ("all", [1, 2]),
        ("numbers", [1, 2]),
        ("words", [1, "a"]),
        ("all", [1, "a"]),
        ("numbers", [1, "a"]),
    ]


def test_no_listener_is_called_once_all_were_dropped() -> None:
    received: list[int] = []
    listeners: Listeners[int] = Listeners()
    listeners.append(received.extend)
    listeners.tell([1])
    listeners.clear()
    listeners.tell([2])
    assert received == [1]


def test_a_later_listener_is_called_for_kinds_that_came_before() -> None:
    received: list[str] = []
    listeners: Listeners[int] = Listeners()
    listeners.append(lambda _: received.append("first"))
    listeners.tell([1])
    listeners.append(lambda _: received.append("second"), (int,))
    listeners.tell([2])
    assert received == ["first", "first", "second"]
