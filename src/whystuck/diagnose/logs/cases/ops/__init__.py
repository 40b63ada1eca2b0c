"""Cases of what ranks called: what they print of their own ops, compared."""
