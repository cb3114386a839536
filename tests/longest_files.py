"""Files of tests that take one worker half a minute or more, where two cores run four workers.

They begin before all others. A long file that begins last keeps one worker busy when the others
have nothing left. Files that start Spark and files that do not take turns, so that few Sparks start
at once. `pytest --durations` shows which files belong here.
"""

from pathlib import Path

NAMES = (
    "spark/test_failures.py",
    "campaign/test_campaign.py",
    "conformance/test_java_clients.py",
    "campaign/test_campaign_killed.py",
    "spark/test_failures_broker.py",
    "sim/test_world.py",
    "spark/test_cluster.py",
    "crash/test_share_killed.py",
    "spark/log/test_killed.py",
    "conformance/test_new_consumer_protocol.py",
    "examples/test_pipelines.py",
    "fuzz/test_fuzz.py",
    "crash/test_driver_killed.py",
    "crash/test_broker_under_clients.py",
    "spark/queue/test_kafka_driver.py",
    "conformance/test_share_client_restart.py",
    "testing/test_example_project.py",
    "crash/test_kill_minus_nine.py",
    "examples/test_cookbook.py",
    "conformance/test_kafka_consumer_groups.py",
    "spark/isolation/test_deaths.py",
    "sim/test_days.py",
    "spark/test_jvm.py",
    "crash/test_seeding_killed.py",
    "spark/isolation/test_queries.py",
    "campaign/test_campaign_repairs.py",
    "demo/test_end_to_end.py",
    "conformance/test_share_tools.py",
)
_FOLDER = Path(__file__).parent


def ranks() -> dict[Path, int]:
    """Return the rank of each file, 0 for the one that begins first.

    Raises: FileNotFoundError for a name without a file.
    """
    return {(_FOLDER / name).resolve(strict=True): rank for rank, name in enumerate(NAMES)}
