"""Batches gathered from memory-mapped files: planned once, then by C or by torch alone."""
