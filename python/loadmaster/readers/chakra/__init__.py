"""MLCommons Chakra: execution traces of ranks."""
