"""Commands over evidence on disk."""
