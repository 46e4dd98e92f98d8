"""Small classic control tasks, learnt in minutes on a laptop."""
