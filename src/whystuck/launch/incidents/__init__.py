"""Incidents and the evidence folder, on this node and in stores."""
