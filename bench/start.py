"""From launch to the first answer, and memory when idle: Headrace beside Apache Kafka 4.3.1.

    python bench/start.py [--quick]

Each broker is launched as its users launch it, with an empty data folder; the clock runs until it
answers ApiVersions. Resident memory is read after it idled for some seconds. The last line is one
JSON object; ratios are Headrace / Kafka.
"""

import argparse
import json
import statistics
import time

from brokers import BROKERS, prepared

_IDLE_SECONDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one launch of each, under a minute")
    rounds = 1 if parser.parse_args().quick else 5
    figures: dict[str, float] = {}
    launches: dict[str, list[float]] = {name: [] for name in BROKERS}
    memory: dict[str, list[float]] = {name: [] for name in BROKERS}
    for _ in range(rounds):
        for name, kind in BROKERS.items():
            with prepared(kind) as broker:
                launches[name].append(broker.launch())
                time.sleep(_IDLE_SECONDS)
                memory[name].append(broker.resident_mb())
                broker.stop()
            print(f"{name}: {launches[name][-1]:.3f} s, {memory[name][-1]:.0f} MB")
    for name in BROKERS:
        figures[f"{name}_launch_s"] = round(statistics.median(launches[name]), 3)
        figures[f"{name}_idle_mb"] = round(statistics.median(memory[name]), 1)
    for figure in ("launch_s", "idle_mb"):
        ratio = figures[f"headrace_{figure}"] / figures[f"kafka_{figure}"]
        figures[f"{figure}_ratio"] = round(ratio, 4)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
