"""FlashSAC: ``config.yaml`` and a file for each task."""
