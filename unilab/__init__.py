"""Robot reinforcement learning on TorchRL primitives."""
