"""Lightning: ``Trainer`` and its strategies."""
