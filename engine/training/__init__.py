"""Training of drafters on the target's own answers."""
