"""Cases of losses, gradients and weights that are not what they should be."""
