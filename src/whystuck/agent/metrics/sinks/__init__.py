"""Receivers of figures: Prometheus, OTLP, JSON lines."""
