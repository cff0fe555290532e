"""Pages of docs/ that are made from the code; tools/write_references.py writes them."""
