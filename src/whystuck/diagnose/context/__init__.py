"""What rules judge: what the evidence says of each rank, group and node."""
