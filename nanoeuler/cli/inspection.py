"""Subcommands of the inspection wing: check, info."""

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from nanoeuler import log
from nanoeuler.backend import DEVICES
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.model.check import Comparison
    from nanoeuler.model.spec import ModelConfig


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
    check = subparsers.add_parser(
        "check", help="compare every gradient with finite differences", description="Compare every op's and every parameter tensor's gradient with finite differences."
    )
    check.add_argument("--quick", action="store_true", help="all ops, but only one small model: half a second, as a trainer does at its start")
    check.add_argument("--output", metavar="PATH", help="write the table as JSON as well")
    check.add_argument("--device", choices=DEVICES, default="auto")
    check.add_argument("--log", metavar="PATH", help="append log lines to this file as well")
    check.set_defaults(handler=run_check)
    info = subparsers.add_parser("info", help="parameters, FLOPs and bytes of a model; this machine", description="Say what a model consists of and what it costs, and what this machine has.")
    which = info.add_mutually_exclusive_group()
    which.add_argument("--model", metavar="DIR", help="model folder of a finished stage")
    which.add_argument("--config", metavar="C", help="path of a config, or inline JSON with its model section")
    info.add_argument("--rows", type=int, default=8, metavar="N", help="rows of a micro-batch, for its memory (default 8)")
    info.add_argument("--length", type=int, metavar="N", help="tokens of a row (default: the model's context)")
    info.add_argument("--device", choices=DEVICES, default="auto")
    info.add_argument("--gpus", type=int, metavar="N", help="0 forces the CPU")
    info.add_argument("--log", metavar="PATH", help="append log lines to this file as well")
    info.set_defaults(handler=run_info)


# ---- check


def run_check(options: argparse.Namespace) -> None:
    from nanoeuler.backend import make_backend
    from nanoeuler.files import write_json
    from nanoeuler.model.check import TOLERANCE, check_all

    make_backend(options.device)  # refuses a device that is not there; the check itself needs the reference's float64
    comparisons = []
    for comparison in check_all(options.quick):
        if not comparisons or comparisons[-1].case != comparison.case:
            print(f"{comparison.case:<52} {'elements':>8}  {'error':>8}  {'worst':>8}")
        print(row_text(comparison), flush=True)
        comparisons.append(comparison)
    worst = max(comparisons, key=lambda comparison: math.inf if math.isnan(comparison.error) else comparison.error)
    failed = [comparison for comparison in comparisons if not comparison.passed]
    if options.output:
        write_json(options.output, check_report(comparisons, worst, options.quick, TOLERANCE))
    if failed:
        raise UserError(
            f"gradient check: {len(failed)} of {len(comparisons)} tensors differ from finite differences by more than {TOLERANCE:g}, most of all "
            f"{worst.tensor} of '{worst.case}' ({worst.error:.1e}); the backward pass of an op is not the derivative of its forward pass"
        )
    log.line("check", f"every gradient agrees with finite differences (limit {TOLERANCE:g})", tensors=len(comparisons), largest_error=f"{worst.error:.1e}")


def row_text(comparison: "Comparison") -> str:
    verdict = "ok" if comparison.passed else "WRONG"
    return f"  {comparison.tensor:<50} {comparison.elements:>8}  {comparison.error:8.1e}  {comparison.worst:8.1e}  {verdict}"


def check_report(comparisons: "list[Comparison]", worst: "Comparison", quick: bool, tolerance: float) -> dict[str, Any]:
    """The table as JSON values; an error that is no number (inf, NaN) becomes null."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "version": 1,
        "quick": quick,
        "tolerance": tolerance,
        "passed": all(comparison.passed for comparison in comparisons),
        "largest_error": finite(worst.error),
        "rows": [
            {
                "case": comparison.case,
                "tensor": comparison.tensor,
                "elements": comparison.elements,
                "error": finite(comparison.error),
                "worst": finite(comparison.worst),
                "ok": comparison.passed,
            }
            for comparison in comparisons
        ],
    }
