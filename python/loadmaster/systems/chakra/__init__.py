"""MLCommons Chakra: execution traces of a simulated step."""
