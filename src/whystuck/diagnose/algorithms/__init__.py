"""Pure functions from tables to facts. They judge nothing; rules do."""
