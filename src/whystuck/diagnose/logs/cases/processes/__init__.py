"""Cases of how processes ended, or what keeps them."""
