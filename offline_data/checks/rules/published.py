"""Rules on published."""
