"""Any path to evidence: what a file is, whose it is, its bytes, and worker processes."""
