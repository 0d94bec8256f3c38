"""Whether the features of a dataset are aligned: which action led to which observation."""
