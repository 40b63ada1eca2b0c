"""What tools print of machines: devices, links, ports, limits, storage."""
