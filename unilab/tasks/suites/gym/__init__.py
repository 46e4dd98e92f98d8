"""Gymnasium's MuJoCo tasks, thousands at once; the models are read from an installed gymnasium."""
