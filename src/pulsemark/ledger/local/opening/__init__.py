"""Opening a folder: recovery after a crash, and completing the catalog."""
