"""What a broker counts, and how it shows that."""
