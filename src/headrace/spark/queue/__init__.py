"""The source as a queue: a share group, held by the session that the checkpoint names."""
