"""Rules on rewards."""
