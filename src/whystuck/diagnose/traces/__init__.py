"""What traces say of the time of steps, for the rules about cost."""
