"""Motion tracking: robots that follow a reference motion."""
