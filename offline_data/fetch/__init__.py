"""Fetching and verifying raw files: planned first, then carried out."""
