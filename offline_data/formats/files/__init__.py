"""The user's own files: arrays of any format, which a mapping in TOML makes a dataset of."""
