"""What a broker with metrics tells over HTTP, for the tests of either side of it."""

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families as parsed

import headrace

METRICS = {"headrace.metrics.port": "0"}
TIMEOUT = 30

Series = dict[tuple[str, ...], float]


def get(broker: headrace.Broker, path: str = "/metrics", accept: str = "") -> tuple[int, str, str]:
    """Status, content type and body."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{broker.metrics_port}{path}", headers={"Accept": accept}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def series(broker: headrace.Broker) -> dict[str, Series]:
    """Every sample by its name and the values of its labels in the order of their names."""
    found: dict[str, Series] = {}
    for family in parsed(get(broker)[2]):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found
