"""`python -m fuzz`: run campaigns for a time, or one case again."""

import argparse
import os
import sys

from fuzz.campaigns import CAMPAIGNS
from fuzz.runner import replay, run_campaigns


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz",
        description="Give damaged input to every reader; exits 1 when one does not refuse it well.",
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--campaign",
        action="append",
        choices=list(CAMPAIGNS),
        help="only this reader; may be repeated (default: all in turn)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run this one case of the campaign again")
    parser.add_argument(
        "--jobs", type=int, default=min(4, os.cpu_count() or 1), help="readers at the same time"
    )
    options = parser.parse_args()
    names = options.campaign or list(CAMPAIGNS)
    if options.case is None:
        return 1 if run_campaigns(names, options.minutes, options.seed, options.jobs) else 0
    if len(names) != 1:
        parser.error("--case belongs to one --campaign")
    outcome = replay(names[0], options.seed, options.case)
    print(f"{outcome.kind} after {outcome.seconds:.2f} s: {outcome.signature}\n{outcome.detail}")
    return 1 if outcome.found else 0


if __name__ == "__main__":
    sys.exit(main())
