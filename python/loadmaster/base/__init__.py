"""What every floor stands on: errors, units, files, warnings, checks of arguments, text."""
