"""Headline figures, each beside a peer in the same process: `python -m benchmarks [NAME…]`."""
