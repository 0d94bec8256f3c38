"""V-D4RL: npz and HDF5 files of images."""
