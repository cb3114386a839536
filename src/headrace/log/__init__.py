"""The append-only log: segments on a disk, and the record formats of the journals."""
