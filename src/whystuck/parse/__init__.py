"""Bytes to tables: one module for each format. Nothing here touches disk."""
