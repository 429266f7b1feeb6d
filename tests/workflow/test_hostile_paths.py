"""No name that reaches the command of a cluster's job is run by a shell."""

import os
import re

import pytest
from stub_checkout import CONFIG, make_checkout

from tests.slurm_cluster import PROFILE

SBATCH = """#!/bin/sh
# what nodes do with the job, at once and with what it says beside it; then nothing is accepted
tasks=1-1
for argument in "$@"; do
    case $argument in
        --wrap=*) printf %s "${argument#--wrap=}" > "$CALLS/script" ;;
        /dev/stdin) cat > "$CALLS/script" ;;
        --array=*) tasks=${argument#--array=} SLURM_ARRAY_TASK_MIN=${tasks%-*} ;;
    esac
done
export SLURM_ARRAY_TASK_MIN
for SLURM_ARRAY_TASK_ID in $(seq "${tasks%-*}" "${tasks#*-}"); do
    [ "$SLURM_ARRAY_TASK_MIN" ] && export SLURM_ARRAY_TASK_ID
    sh "$CALLS/script" >> "$CALLS/said" 2>&1
    echo $? >> "$CALLS/status"
done
exit 1
"""
SRUN = """#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
exec "$@"
"""
SINFO = """#!/bin/sh
case "$*" in
    *%c*) echo 'main*|64|500000|gpu:1|infinite' ;;
    *) echo 'main*' ;;
esac
"""
NAMES = (
    *("f$(touch X)", "f`touch X`", "f'$(touch X)'", 'f";touch X;"', "f';touch X;'", "f x"),
    *(
        "f\\$(touch X)",
        "f{run}",
        "f\ntouch X\n",
        "-f",
        "--config=f",
        "f&touch X&",
        "f|touch X",
        "é 字",
    ),
)


EVALUATED = ["pretrain", "sft"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkout in a hostile folder with hostile configurations, whose models are there, and the
    arguments that name those."""
    pytest.importorskip(
        "snakemake_executor_plugin_slurm", reason="the slurm extra is not installed"
    )
    folder = tmp_path_factory.mktemp("hostile") / "it's $(touch X)"
    folder.mkdir()
    checkout = make_checkout(folder)
    for name in NAMES:
        (checkout.path / f"{name}.yaml").write_text(CONFIG)
    configured = "--config", "seed=7", "--configfile", *(f"./{name}.yaml" for name in NAMES), "--"
    checkout.run("--cores", "2", *configured, *EVALUATED)
    return checkout, configured


@pytest.mark.parametrize("script", [(), ("--slurm-pass-command-as-script",)])
@pytest.mark.parametrize("array", [(), ("--slurm-array-jobs", "evaluate_model")])
def test_paths_of_configurations_are_not_run_on_a_cluster(trained, tmp_path, array, script):
    checkout, configured = trained
    programs = {"sbatch": SBATCH, "srun": SRUN, "sinfo": SINFO, "squeue": "#!/bin/sh\n"}
    for name, program in programs.items():
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    (checkout.path / "calls.txt").unlink(missing_ok=True)
    evaluated = EVALUATED if array else EVALUATED[:1]
    done = checkout.snakemake(
        *PROFILE,
        *("--retries", "0", *array, *script, *configured),
        *(f"results/trial/evaluation/{stage}.json" for stage in evaluated),
        environment={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "CALLS": str(tmp_path),
        },
    )
    said = done.stdout + done.stderr
    assert (tmp_path / "status").exists(), said
    succeeded = ["0"] * len(evaluated)
    assert (tmp_path / "status").read_text().split() == succeeded, (tmp_path / "said").read_text()
    assert not [path for folder in (tmp_path, checkout.path.parent) for path in folder.rglob("X")]
    models = [re.search(r"results/trial/(\w+)/model", call)[1] for call in checkout.calls]
    assert sorted(models) == evaluated
