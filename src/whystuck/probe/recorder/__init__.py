"""Torch's flight recorders, and the ops that they do not see."""
