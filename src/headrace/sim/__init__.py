"""A deterministic simulator: whole brokers on a disk that forgets, in one thread. One seed, one history."""
