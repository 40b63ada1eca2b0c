"""Rules that take traces by themselves: when a job stalls, or it or a rank gets slow."""
