"""Op logs and inspected tensors, and the join of op logs with dumps."""
