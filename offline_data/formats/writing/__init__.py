"""Base of the writers of all formats: the target, its episodes, the plan of places and losses."""
