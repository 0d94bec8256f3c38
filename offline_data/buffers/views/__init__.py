"""Views: some episodes or rows of a dataset as a buffer of their own, by indices, without a copy."""
