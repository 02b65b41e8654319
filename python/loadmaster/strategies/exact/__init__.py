"""Methods that call a solver, and what they share."""
