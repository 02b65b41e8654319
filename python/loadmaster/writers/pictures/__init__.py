"""Pictures, drawings and traces of a plan."""
