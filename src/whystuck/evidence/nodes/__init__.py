"""What is known of nodes: resources, devices, RAS, metrics."""
