"""Every example of docs/testing.md, in a project of its own that has Headrace installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"
BLOCK = re.compile(r"^```(\w+) *([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPARK = "test_spark.py"
# What a build reads. It writes beside it, so it is given a copy.
SOURCES = ("src", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
BUILT = shutil.ignore_patterns("*.so", "*.c", "*.egg-info", "__pycache__")

UNKNOWN = "settings of headrace_broker: there is no setting 'num.partition'; did you mean"
OPTIONS = """
import headrace
import pytest


def test_options(headrace_broker, headrace_topic):
    assert headrace_broker.faults.seed == 7
    topic = headrace_topic(partitions=None)
    with headrace.SyncAdmin(headrace_broker.bootstrap_servers) as admin:
        assert len(admin.describe_topics([topic])[topic].partitions) == 3


@pytest.mark.headrace(settings={"num.partition": 4})
def test_a_setting_that_is_none(headrace_broker):
    assert False


@pytest.mark.headrace({"num.partitions": 4})
def test_a_marker_that_says_nothing(headrace_broker):
    assert False
"""


ELSEWHERE = """
import pytest
from headrace.testing import ExternalBroker


@pytest.fixture
def headrace_broker():
    return ExternalBroker("127.0.0.1:9")


def test_time(headrace_clock):
    assert False


def test_faults(headrace_faults):
    assert False
"""


class Project:
    """A folder with the examples, and one with Headrace; the tools are those of this Python."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site"
        self.folder = folder / "project"
        self._install(folder / "source")
        self.folder.mkdir()
        self.tests = 0
        for _, name, code in examples():
            (self.folder / name).write_text(code, encoding="utf-8")
            if name != SPARK:
                self.tests += len(re.findall(r"^ *def test_", code, re.MULTILINE))

    def run(self, *words: str) -> str:
        """Run Python there; what it said. Its exit code must be 0."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment | {"PYTHONPATH": str(self.site)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _install(self, source: Path) -> None:
        source.mkdir()
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=BUILT)
            else:
                shutil.copy(ROOT / name, source / name)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        offline = ["--no-index", "--no-deps", "--no-build-isolation"]
        done = subprocess.run(
            [*pip, *offline, "--target", str(self.site), str(source)],
            env=os.environ | {"HEADRACE_PURE": "1"},  # compiling takes minutes, and is not asked
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def examples() -> list[tuple[str, str, str]]:
    """Language, name of the file and text of each block that has a file's name."""
    found = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    return [block for block in found if block[1] and block[1] != "fragment"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    pytest.importorskip("setuptools", minversion="77", reason="pip install '.[dev]'")
    return Project(tmp_path_factory.mktemp("example"))


def test_every_python_on_the_page_is_run() -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [code for language, name, code in blocks if language == "python" and not name] == []
    names = [name for _, name, _ in examples()]
    assert len(names) == len(set(names)) >= 8
    assert SPARK in names


def test_what_runs_there_is_what_was_installed(project: Project) -> None:
    where = project.run("-c", "import headrace; print(headrace.__file__)")
    assert Path(where.strip()).is_relative_to(project.site)


def test_headrace_needs_no_pytest(project: Project) -> None:
    project.run(
        "-c",
        "import sys; sys.modules['pytest'] = None\n"
        "from headrace.testing import BrokerUnderTest\n"
        "with BrokerUnderTest() as broker: broker.create_topic('orders')\n",
    )


def test_the_examples_pass_beside_each_other(project: Project) -> None:
    said = project.run("-m", "pytest", "-q", "-n", "2", "-W", "error", f"--ignore={SPARK}")
    assert f"\n{project.tests} passed" in said


def test_options_reach_the_broker_and_what_is_wrong_is_one_line(project: Project) -> None:
    said = project.run("-m", "pytest", "--help")
    assert "--headrace-set=KEY=VALUE" in said
    assert "--headrace-seed=N" in said
    assert "headrace_settings" in said
    (project.folder / "test_options.py").write_text(OPTIONS, encoding="utf-8")
    words = ("--headrace-seed", "7", "--headrace-set", "num.partitions=3", "test_options.py")
    with pytest.raises(AssertionError, match="1 passed, 2 errors") as found:
        project.run("-m", "pytest", *words)
    lines = [line.strip() for line in str(found.value).splitlines()]
    assert any(line.startswith(UNKNOWN) for line in lines)
    assert any(line.startswith("write @pytest.mark.headrace(settings=") for line in lines)


def test_what_an_external_broker_lacks_is_skipped(project: Project) -> None:
    (project.folder / "test_lacks.py").write_text(ELSEWHERE, encoding="utf-8")
    assert "\n2 skipped" in project.run("-m", "pytest", "-q", "test_lacks.py")


@pytest.mark.spark
def test_the_example_with_spark_passes(project: Project) -> None:
    assert "\n1 passed" in project.run("-m", "pytest", "-q", SPARK)
