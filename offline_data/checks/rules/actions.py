"""Rules on actions."""
