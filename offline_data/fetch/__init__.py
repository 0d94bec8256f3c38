"""Bytes from elsewhere to here, verified: planned first, then carried out."""
