"""Parts that several systems share."""
