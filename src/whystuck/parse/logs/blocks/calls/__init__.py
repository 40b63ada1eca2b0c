"""What ranks called, as tools and people print it: groups, recorders, RAS, transfers."""
