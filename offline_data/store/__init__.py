"""The dataset directory: written once, audited, published by a rename, read by anyone."""
