"""User functions in which one record that raises, or kills its process, does not stop others."""
