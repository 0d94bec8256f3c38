"""d3rlpy's HDF5 files, read and written."""
