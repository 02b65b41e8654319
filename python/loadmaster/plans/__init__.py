"""Plans: data, and what is said of it."""
