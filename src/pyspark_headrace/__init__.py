"""Where Spark looks for `format("headrace")` by itself.

Spark imports every module whose name begins with `pyspark_` and takes its `DefaultSource`, so no
session has to call `register`. Source: PySpark 4.3 `sql/worker/lookup_data_sources.py`.
"""

from headrace.spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
