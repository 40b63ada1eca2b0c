"""What ops cost, and who is late."""
