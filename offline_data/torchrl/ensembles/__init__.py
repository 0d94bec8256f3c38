"""Ensembles of buffers: storages, samplers, writers and collate functions of several."""
