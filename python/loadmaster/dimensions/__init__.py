"""Which dimensions the tensors of a graph share, and along which of them each op can be cut."""
