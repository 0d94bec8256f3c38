"""Benchmarks of the README, each timed against a peer in the same run: `python -m benchmarks`."""
