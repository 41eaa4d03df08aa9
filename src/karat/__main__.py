"""`python -m karat` is the command line."""

import sys

from karat.cli import main

if __name__ == "__main__":
    sys.exit(main())
