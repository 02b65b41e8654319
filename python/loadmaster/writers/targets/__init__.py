"""Plans in the form that other systems take, a file for each system."""
