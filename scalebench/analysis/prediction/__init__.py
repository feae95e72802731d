"""Prediction: what data and model parallelism should take, from measured rates and the costs of a network."""
