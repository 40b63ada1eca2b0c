"""Cases that compare the pasted stacks of ranks with what else is shown."""
