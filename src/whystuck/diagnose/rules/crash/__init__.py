"""Jobs that died."""
