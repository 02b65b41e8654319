"""MaxText and Flax: mesh sizes, and logical axis rules."""
