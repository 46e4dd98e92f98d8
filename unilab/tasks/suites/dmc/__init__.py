"""Tasks of the DeepMind Control Suite, thousands at once; models come from dm_control."""
