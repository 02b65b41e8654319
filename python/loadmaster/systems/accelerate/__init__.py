"""Hugging Face accelerate: modules by a device map."""
