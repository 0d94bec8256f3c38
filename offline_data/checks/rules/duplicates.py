"""Rules on duplicates."""
