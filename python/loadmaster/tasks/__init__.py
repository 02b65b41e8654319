"""Tasks: what a user asks for, one file each."""
