"""Mixtures: batches whose rows come from several buffers, in stated proportions."""
