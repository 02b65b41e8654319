"""``python -m loadmaster``: the command line."""

import sys

from loadmaster.cli import main

sys.exit(main())
