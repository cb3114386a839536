"""The log lines of the source in Spark's Python processes, which set up no logging of their own."""

import logging


def show(level: str) -> None:
    """Have our lines of `level` and above in the process's stderr: the driver's or a task's."""
    ours = logging.getLogger("headrace")
    ours.setLevel(level)
    if not ours.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        ours.addHandler(handler)
