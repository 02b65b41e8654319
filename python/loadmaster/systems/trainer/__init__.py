"""Hugging Face transformers: ``Trainer``."""
