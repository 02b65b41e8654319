"""What a plan must obey, and what that comes to for every op."""
