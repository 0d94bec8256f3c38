"""Where data come from: one adapter per file, found by name in `registry`."""
