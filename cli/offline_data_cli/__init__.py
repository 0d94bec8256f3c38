"""The command line `offline-data`."""
