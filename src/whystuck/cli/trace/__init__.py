"""Commands over Kineto traces."""
