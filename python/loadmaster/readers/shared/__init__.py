"""Parts that readers of several frameworks share."""
