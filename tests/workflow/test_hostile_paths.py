"""No name that reaches the command of a cluster's job is run by a shell."""

import os

import pytest
from stub_checkout import CONFIG, make_checkout

from tests.slurm_cluster import PROFILE

SBATCH = """#!/bin/sh
# what a node does with the job, at once and with what it says beside it; then nothing is accepted
for argument in "$@"; do
    case $argument in --wrap=*) printf %s "${argument#--wrap=}" > "$CALLS/script" ;; esac
done
sh "$CALLS/script" > "$CALLS/said" 2>&1
echo $? > "$CALLS/status"
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


def test_paths_of_configurations_are_not_run_on_a_cluster(tmp_path):
    pytest.importorskip(
        "snakemake_executor_plugin_slurm", reason="the slurm extra is not installed"
    )
    folder = tmp_path / "it's $(touch X)"
    folder.mkdir()
    checkout = make_checkout(folder)
    (tmp_path / "bin").mkdir()
    programs = {"sbatch": SBATCH, "srun": SRUN, "sinfo": SINFO, "squeue": "#!/bin/sh\n"}
    for name, program in programs.items():
        (tmp_path / "bin" / name).write_text(program)
        (tmp_path / "bin" / name).chmod(0o755)
    for name in NAMES:
        (checkout.path / f"{name}.yaml").write_text(CONFIG)
    done = checkout.snakemake(
        *PROFILE,
        *("--retries", "0", "--config", "seed=7", "--configfile"),
        *(f"./{name}.yaml" for name in NAMES),
        *("--", "check_gradients"),
        environment={
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "CALLS": str(tmp_path),
        },
    )
    said = done.stdout + done.stderr
    assert (tmp_path / "status").exists(), said
    assert (tmp_path / "status").read_text() == "0\n", (tmp_path / "said").read_text()
    assert not list(tmp_path.rglob("X"))
    assert [call.split()[0] for call in checkout.calls] == ["check"]
