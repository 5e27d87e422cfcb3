"""Model checkpoints: from a name or a folder to a checked configuration and tensors."""
