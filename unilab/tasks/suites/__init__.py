"""Tasks of Gymnasium and the DeepMind Control Suite, thousands at once."""
