"""Readers of tables and rows with a figure for each rank."""
