"""The papers' searches: they choose a device per group and simulate every placement."""
