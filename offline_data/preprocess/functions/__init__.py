"""Functions of the user as steps: on rows, vectorised where that is the same, on blocks, on episodes."""
