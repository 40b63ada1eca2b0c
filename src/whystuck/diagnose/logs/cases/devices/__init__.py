"""Cases of devices: what broke, what driver and kernel said of it, and who shares them."""
