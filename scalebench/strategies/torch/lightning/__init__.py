"""Training by pytorch_lightning.Trainer: its distributed strategies, and the base of other ones."""
