"""What the model folder says."""
