"""`python -m phnn` is the command `phnn`."""

import sys

from phnn.cli import main

if __name__ == "__main__":
    sys.exit(main())
