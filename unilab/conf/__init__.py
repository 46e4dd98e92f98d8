"""Packaged Hydra configuration."""
