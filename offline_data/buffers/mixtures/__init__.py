"""Several buffers sampled as one, in exact proportions."""
