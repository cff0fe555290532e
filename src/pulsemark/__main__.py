"""`python -m pulsemark` is the `pulsemark` command."""

import sys

from .cli import main

sys.exit(main())
