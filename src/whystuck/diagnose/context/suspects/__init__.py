"""Why a rank that others wait for does not come."""
