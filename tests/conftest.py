"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How fast a machine is decides no test: neither a deadline an example, nor a slow data generation.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
