"""Dataset directories as immutable replay buffers; the only package here that imports torch."""
