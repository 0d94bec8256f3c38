"""Rules on images."""
