"""Model Explorer: node data of a plan."""
