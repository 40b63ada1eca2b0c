"""The tables of ops: flight recorders, op logs, inspected tensors, executed lines."""
