"""What costs time, by traces."""
