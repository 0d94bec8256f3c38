"""Bytes of files as arrays: HDF5, Arrow, npz, TFRecord, archives, images and video.

A module reads one file format, with limits for hostile files, and knows no source. Start with `arrays`, the
arrays of any of these formats, or with the module of a format.
"""
