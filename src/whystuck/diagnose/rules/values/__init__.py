"""Values of tensors: weights, gradients, updates."""
