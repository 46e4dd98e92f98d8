"""Managers: each turns a table of terms into one part of the environment's step."""
