"""The user's input: the graph of a model, the cluster, measured times of ops."""
