"""`python -m nanoeuler` is the same as the `nanoeuler` command."""

import sys

from nanoeuler.cli import main

if __name__ == "__main__":
    sys.exit(main())
