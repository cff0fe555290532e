"""An example of a stamper plugin: fields of one's own in every entry's prefix."""
