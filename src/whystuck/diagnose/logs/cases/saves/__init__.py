"""Cases of checkpoints that are slow to write, and of the storage below them."""
