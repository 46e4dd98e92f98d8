"""Legged robots that follow a commanded planar velocity."""
