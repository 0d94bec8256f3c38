"""Views: some rows of a dataset as a storage of their own, and their files on disk."""
