"""The source as a log: topics read by offsets as Spark's Kafka source does, on any broker."""
