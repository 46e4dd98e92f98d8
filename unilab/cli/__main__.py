"""``python -m unilab.cli``."""

import sys

from unilab.cli import main

if __name__ == "__main__":
    sys.exit(main())
