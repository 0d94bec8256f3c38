"""zarr arrays: those of Diffusion Policy, read, and a writer of the same layout."""
