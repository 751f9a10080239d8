"""``python -m lsgen``."""

import sys

from lsgen.cli import main

if __name__ == "__main__":
    sys.exit(main())
