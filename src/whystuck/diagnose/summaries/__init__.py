"""What reports and tables show beside findings."""
