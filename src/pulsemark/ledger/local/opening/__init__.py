"""Opening a folder: what a crash left is brought in order first."""
