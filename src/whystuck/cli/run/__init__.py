"""Commands around a running job."""
