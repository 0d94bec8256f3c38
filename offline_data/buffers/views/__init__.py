"""Views: selected rows of a dataset as a storage, and their files on disk."""
