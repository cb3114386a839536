"""Decisions: event-sourced state machines with no I/O, no clock and no randomness."""
