"""Hugging Face accelerate: the file of ``accelerate launch --config_file``."""
