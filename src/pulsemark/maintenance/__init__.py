"""Looking after data folders: verifying them, and making a lost catalog again."""
