"""Benchmarks of docs/how-fast.md, each timed against a peer in the same run: `python -m benchmarks`."""
