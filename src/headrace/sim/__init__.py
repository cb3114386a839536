"""A deterministic simulator: whole brokers on a disk that forgets; one seed, one history."""
