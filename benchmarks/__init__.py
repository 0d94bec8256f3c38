"""Figures of the README, each measured beside a peer in one run: `python -m benchmarks`."""
