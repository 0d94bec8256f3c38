"""Gathering of batches from memory-mapped files: planned once, run by C or by torch."""
