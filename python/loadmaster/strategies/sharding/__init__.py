"""Plans that split, replicate and shard ops: one label per op."""
