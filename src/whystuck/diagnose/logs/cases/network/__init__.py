"""Cases of processes that do not find each other, and of networks between them."""
