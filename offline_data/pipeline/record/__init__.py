"""Recording environments: the wrapper, the log of its finished episodes, and the dataset made of that."""
