"""An example of a stamper plugin: it writes its own fields into every entry's prefix."""
