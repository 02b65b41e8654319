"""Sharding: one label per op and mesh axis, from tables of costs, by pairwise labelling."""
