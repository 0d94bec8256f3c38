"""User functions as steps: on rows (vectorised if equal), on blocks, on episodes."""
