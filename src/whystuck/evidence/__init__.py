"""The nouns of whystuck: tables, topology, gaps, findings, and the evidence folder on disk."""
