"""Rules on ends."""
