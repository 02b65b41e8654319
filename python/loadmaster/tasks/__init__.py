"""What a user asks for, one file each."""
