"""Arms that move their tool to a commanded pose."""
