"""Bytes: frames, messages and record batches of the Kafka protocol."""
