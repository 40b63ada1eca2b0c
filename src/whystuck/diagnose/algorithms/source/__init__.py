"""What source texts let ranks call."""
