"""What a plan must obey, and what each constraint means for every op."""
