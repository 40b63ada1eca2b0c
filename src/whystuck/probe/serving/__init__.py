"""The thread of the probe, and who may ask it."""
