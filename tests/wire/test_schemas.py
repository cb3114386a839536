"""kio's schemas come without what only kio's own tests need."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["headrace.wire.schemas", "headrace.client.connection", "headrace.spark.source"]
)
def test_no_module_brings_hypothesis_along(module: str) -> None:
    code = f"import sys, {module}; sys.exit('hypothesis' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_hypothesis_can_be_imported_afterwards() -> None:
    code = "import headrace.wire.schemas, hypothesis"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
