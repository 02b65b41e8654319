"""The one judge of every plan: the problem, the simulation, bounds, coarse problems."""
