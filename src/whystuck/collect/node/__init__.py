"""What a node, its kernel, devices and file systems say."""
