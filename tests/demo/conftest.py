"""A Spark session for the tests of the demo, the one that other tests of this process use too."""

import pytest
from pyspark.sql import SparkSession

from headrace.spark import local_session


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return local_session("headrace tests")
