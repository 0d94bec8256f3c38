"""Minari: HDF5 and Arrow storages, their catalogue, and a writer."""
