"""The default method: many fast strategies, the best of them refined, then a search."""
