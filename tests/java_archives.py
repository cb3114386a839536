"""What a JVM needs to start soon, where tests start many of them.

Half of what a start takes is to load and check some ten thousand classes. Run as a program, this
has Spark and a broker of Apache Kafka do so once and keep the outcome (JEP 350: archives of Java 13
and later); in tests, Spark's start takes 7 instead of 11 s of the processor afterwards, a broker's
1.6 instead of 2.6, one of Kafka's tools 0.5 instead of 0.8. Until they are there, or where none can
be made, Java loads classes as ever.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Nothing here runs for so long that thorough compilation of Java's code pays.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_OPTIONS = {"spark": "SPARK_SUBMIT_OPTS", "kafka": "KAFKA_JVM_PERFORMANCE_OPTS"}


def options(folder: Path) -> dict[str, str]:
    """The environment of Spark's and Kafka's processes, for archives in `folder`."""
    return {
        variable: f"{QUICK} -XX:SharedArchiveFile={_archive(folder, name)} -Xlog:disable"
        for name, variable in _OPTIONS.items()
    }


def quick_java() -> tuple[str, ...]:
    """The options of programs that use Kafka's classes."""
    return tuple(os.environ[_OPTIONS["kafka"]].split())


def spark_options() -> str:
    """The options of those of Spark's processes that its launcher does not give any."""
    return os.environ[_OPTIONS["spark"]]


def making(folder: Path) -> subprocess.Popen[bytes]:
    """A process that makes the archives in `folder`, beside whatever else happens."""
    paths = [str(ROOT), str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")]
    with (folder / "archives.log").open("wb") as told:
        return subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
            start_new_session=True,
        )


def spark_home(folder: Path) -> Path | None:
    """Spark as installed, but for `python/lib`: its workers load the PySpark of the tests.

    The zip file that they would load holds nothing compiled, which costs each new process most of
    a second of the processor.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    home = folder / "spark"
    home.mkdir()
    for part in Path(found.origin).parent.iterdir():
        if part.name != "python":
            (home / part.name).symlink_to(part)
    return home


def _archive(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsa"


def _make(folder: Path, name: str, use: Callable[[], None]) -> None:
    """Have what `use` starts, and ends, write an archive at its end."""
    archive = _archive(folder, name)
    made = archive.with_suffix(".made")
    os.environ[_OPTIONS[name]] = f"{QUICK} -XX:ArchiveClassesAtExit={made}"
    use()
    made.rename(archive)


def _spark() -> None:
    import headrace
    from headrace.client.admin import create_topic
    from headrace.client.connection import Cluster
    from headrace.spark import local_session, register

    session = local_session("classes")
    register(session)
    with headrace.Broker() as broker, tempfile.TemporaryDirectory() as scratch:
        with Cluster(broker.bootstrap_servers) as cluster:
            create_topic(cluster, "t", 2)
        given = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "subscribe": "t",
            "share.group.id": "g",
        }
        rows = session.readStream.format("headrace").options(**given).load()
        writer = rows.writeStream.option("checkpointLocation", f"{scratch}/checkpoint")
        writer.foreachBatch(
            lambda batch, number: batch.write.parquet(f"{scratch}/{number}")
        ).trigger(availableNow=True).start().awaitTermination()
        session.range(10).selectExpr("id % 3 AS k").groupBy("k").count().collect()
    gateway = session.sparkContext._gateway
    session.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _kafka() -> None:
    from brokers import Kafka, prepared

    with prepared(Kafka) as broker:
        broker.launch()
        broker.stop()


if __name__ == "__main__":
    _make(Path(sys.argv[1]), "kafka", _kafka)
    _make(Path(sys.argv[1]), "spark", _spark)
