"""Optimizers for comparison, which Optax does not have."""
