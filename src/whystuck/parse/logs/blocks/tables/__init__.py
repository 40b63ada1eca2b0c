"""Tables and lists of what ranks tell, as tools and people write them."""
