"""Finding the lines of a log that may matter, in blocks of its bytes."""
