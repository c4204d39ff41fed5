"""Optimizers to compare with that Optax does not have."""
