"""Cases of ranks, hosts, links and storage that are slow."""
