"""Flight-recorder dumps to the table of collectives."""
