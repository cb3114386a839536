"""Producing Arrow columns: which partition a row goes to, and that no retry writes it twice."""
