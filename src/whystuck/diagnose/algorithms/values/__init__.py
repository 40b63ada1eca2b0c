"""Where values of tensors differ or are not finite."""
