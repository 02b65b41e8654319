"""What a user brings: the graph of a model, the cluster, what was measured of an op."""
