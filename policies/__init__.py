"""The vocabulary and the pure decisions: observations in, decisions out, no side effects."""
