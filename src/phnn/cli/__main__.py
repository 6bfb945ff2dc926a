"""`python -m phnn.cli` is the command `phnn`."""

import sys

from phnn.cli import main

sys.exit(main())
