"""One file an API family; a handler translates between messages and commands, nothing else."""
