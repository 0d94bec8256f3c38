"""LeRobot 2.1 and 3.0: tables and videos, read and written."""
