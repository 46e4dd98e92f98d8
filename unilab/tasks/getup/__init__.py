"""Robots that stand up after a fall."""
