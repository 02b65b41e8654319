"""Ray Train: ``TorchTrainer`` and its ``ScalingConfig``."""
