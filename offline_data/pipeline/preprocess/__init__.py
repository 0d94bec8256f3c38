"""A new dataset from an old one: a recipe of steps, run in parallel, checked and published."""
