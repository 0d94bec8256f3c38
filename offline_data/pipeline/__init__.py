"""Everything that makes a dataset, or files of one: conversion, recipes, recording, export.

It knows neither buffers nor the command line. Start with `ingest.convert`, `preprocess.engine`, `record.recorder`
or `export.run`; `jobs` runs their tasks in processes, and untrusted files in a child (`jobs.processes.child`).
"""
