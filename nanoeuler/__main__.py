"""`python -m nanoeuler` is the same as the `nanoeuler` command."""

import signal
import sys


def main() -> int:
    """Run the command line. Until a command begins, Ctrl-C ends the process without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from nanoeuler.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
