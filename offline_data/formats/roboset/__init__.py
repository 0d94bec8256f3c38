"""RoboSet: HDF5 files of trials."""
