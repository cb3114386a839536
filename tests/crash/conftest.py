"""One Spark session for all crashes: it is the broker that dies, again and again."""

import pytest
from pyspark.sql import SparkSession

from headrace.spark import local_session


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return local_session("headrace tests")
