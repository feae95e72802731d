"""Prediction: what more devices would give, from measured scaling curves."""
