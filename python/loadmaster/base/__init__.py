"""The ground of every floor: errors, units, files, warnings, checks of arguments, text."""
