"""The sink: rows of a DataFrame become records of topics, in batches and streams."""
