"""The broker is killed when a stage has come far enough: each kill once, in its own stage."""

from headrace.demo.plan import Kill, Killer, Stage
from headrace.demo.server import Server


class Victim(Server):
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, *, timeout_s: float = 30) -> float:
        self.told.append("start")
        return 0.5

    def kill(self) -> None:
        self.told.append("kill")


def test_each_kill_happens_once_in_its_stage() -> None:
    victim, said = Victim(), list[tuple[Kill, float]]()
    early, late = Kill(Stage.QUERY, 0.2), Kill(Stage.QUERY, 0.7)
    killer = Killer(victim, (early, late), lambda *one: said.append(one))
    killer.reached(Stage.PRODUCE, 1.0)
    killer.reached(Stage.QUERY, 0.1)
    assert victim.told == []
    killer.reached(Stage.QUERY, 0.25)
    killer.reached(Stage.QUERY, 0.5)
    assert victim.told == ["kill", "start"]
    killer.reached(Stage.QUERY, 1.0)
    killer.reached(Stage.QUERY, 1.0)
    assert victim.told == ["kill", "start"] * 2
    assert said == [(early, 0.5), (late, 0.5)]
    assert killer.done == 2


def test_kills_that_are_due_together_all_happen() -> None:
    victim = Victim()
    kills = (Kill(Stage.PRODUCE, 0.1), Kill(Stage.PRODUCE, 0.2))
    Killer(victim, kills, lambda kill, seconds: None).reached(Stage.PRODUCE, 0.3)
    assert victim.told == ["kill", "start"] * 2
