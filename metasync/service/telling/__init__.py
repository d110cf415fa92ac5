"""What the daemon tells the user without being asked: notices, its log, its figures."""
