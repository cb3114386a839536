"""Tools for data folders: check, repair, backup and restore."""
