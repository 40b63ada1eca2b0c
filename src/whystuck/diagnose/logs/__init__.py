"""The story that the logs of a job tell: which cause came first."""
