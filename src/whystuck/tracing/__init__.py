"""Kineto traces to figures: arrays in, tables out. Nothing here reads or writes files."""
