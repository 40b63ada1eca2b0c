"""Cases of sends, receives and splits that do not belong together."""
