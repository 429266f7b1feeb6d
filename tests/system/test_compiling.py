"""Compiled functions: the cache on disk and what is said."""

import ast
import importlib
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

from tests import forks
from tests.machine_code import copy_machine_code

CHECKOUT = Path(__file__).parents[2]
CALLER = """
from nanoeuler.system.compiling import compiled
from callee import double

@compiled()
def twice(x):
    return double(x) + 1
"""
CALLEE = """
from nanoeuler.system.compiling import compiled

@compiled()
def double(x):
    return {factor} * x
"""
MAIN = "from nanoeuler import log\nlog.start()\nfrom caller import twice\nprint(twice(5))\n"


INTERRUPTED = """
import os, signal
from numba.core import event
from caller import twice

class Interrupt(event.Listener):
    def on_start(self, event):
        os.kill(os.getpid(), signal.SIGINT)

    def on_end(self, event):
        pass

event.register("numba:compile", Interrupt())
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    twice(5)
except KeyboardInterrupt:
    print(twice.signatures)
"""


def run(folder: Path, program: str = MAIN, **environment: str) -> tuple[str, str]:
    done = forks.run(["-c", program], folder, given(folder) | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def given(folder: Path) -> dict[str, str]:
    """The environment of a program in `folder`, beside this checkout's package."""
    return {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{folder}:{CHECKOUT}",
        "XDG_CACHE_HOME": f"{folder}/cache",
    }


def write_program(folder: Path) -> Path:
    (folder / "caller.py").write_text(CALLER)
    (folder / "callee.py").write_text(CALLEE.format(factor=2))
    return folder


@pytest.fixture
def folder(tmp_path):
    """A folder with a program that was never run."""
    return write_program(tmp_path)


@pytest.fixture(scope="module")
def once_run(tmp_path_factory):
    folder = write_program(tmp_path_factory.mktemp("once_run"))
    assert run(folder)[0] == "11"
    return folder


@pytest.fixture
def kept(once_run, tmp_path):
    """A folder with the same program and the machine code of a run of it."""
    return shutil.copytree(once_run, tmp_path / "kept")


def test_the_first_run_compiles_and_says_so_once(folder):
    result, said = run(folder)
    assert result == "11"
    assert said.count("compiling") == 1


def test_stages_that_compile_soon_after_say_nothing_and_one_by_hand_does(kept):
    stage = MAIN.replace("start()", 'start("stage.log")')
    (kept / "callee.py").write_text(CALLEE.format(factor=12))
    assert run(kept, stage) == ("61", "")
    (kept / "callee.py").write_text(CALLEE.format(factor=122))
    assert run(kept)[1].count("compiling") == 1
    said = kept / "cache/nanoeuler/compiling"
    os.utime(said, (said.stat().st_mtime - 3600,) * 2)
    (kept / "callee.py").write_text(CALLEE.format(factor=1222))
    assert run(kept, stage)[1].count("compiling") == 1


def test_the_next_run_finds_the_machine_code_on_disk(kept):
    (kept / "cache/nanoeuler/compiling").unlink()  # or a process that compiles says nothing
    assert run(kept) == ("11", "")


def test_a_change_in_a_function_called_from_another_file_is_noticed(kept):
    # of another length: Python itself compares seconds and sizes
    (kept / "callee.py").write_text(CALLEE.format(factor=12))
    assert run(kept)[0] == "61"


def test_a_changed_constant_of_a_file_without_compiled_functions_is_noticed(folder):
    (folder / "constants.py").write_text("FACTOR = 2\n")
    (folder / "callee.py").write_text(
        "from constants import FACTOR\n" + CALLEE.format(factor="FACTOR")
    )
    assert run(folder)[0] == "11"
    (folder / "constants.py").write_text("FACTOR = 12\n")
    assert run(folder)[0] == "61"


@pytest.mark.parametrize(
    ("path", "old", "new", "result"),
    [
        ("backend/cpu/vector_maps.py", "sigmoid(builder, gate)", "vector_constant(3)", "12.0"),
        ("system/compiling.py", '"error_model": "numpy"', '"error_model": "python"', "3.523"),
    ],
)
def test_an_edit_of_what_goes_into_a_kernel_makes_it_new(tmp_path, path, old, new, result):
    package = tmp_path / "nanoeuler"
    others = shutil.ignore_patterns("__pycache__", "cuda", "corpus", "evaluation", "training")
    shutil.copytree(CHECKOUT / "nanoeuler", package, ignore=others)
    copy_machine_code(tmp_path)
    (tmp_path / "program.py").write_text(
        "import numpy as np\n"
        "from nanoeuler.backend.cpu.elementwise import swiglu\n"
        "two, out = np.full((1, 3), 2, np.float32), np.zeros((1, 3), np.float32)\n"
        "swiglu(two, two, out, 0, 1)\n"
        "print(round(float(out[0, 0]), 3), sum(swiglu.stats.cache_misses.values()))\n"
    )

    def computed() -> list[str]:
        environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        return forks.run(["-c", "import program"], tmp_path, environment).stdout.split()

    computed()  # this checkout may have compiled none
    assert computed() == ["3.523", "0"]
    text = (package / path).read_text()
    assert old in text
    (package / path).write_text(text.replace(old, new, 1))
    assert computed() == [result, "1"]


def test_a_process_that_compiles_computes_what_one_that_loads_does(tmp_path):
    """Of a function that others call, LLVM may make other code by itself than within its callers,
    and a process takes whichever it has first."""
    others = shutil.ignore_patterns("__pycache__", "cuda", "corpus", "evaluation", "training")
    shutil.copytree(CHECKOUT / "nanoeuler", tmp_path / "nanoeuler", ignore=others)
    (tmp_path / "program.py").write_text(
        "import numpy as np\n"
        "from nanoeuler.backend.cpu.elementwise import layer_norm_backward as kernel\n"
        "draw = np.random.default_rng(0).standard_normal\n"
        "x, dout = draw((2, 9, 128), np.float32)\n"
        "weight, bias = draw((2, 128), np.float32)\n"
        "norm = x, weight, bias, np.float32(1e-5), np.empty_like(x), np.ones(9, np.float32)\n"
        "dx, sums = np.empty_like(x), np.empty((4, 128), np.float32)\n"
        "kernel(dout, norm, dx, sums, False, False, dout, 0, 0, 9)\n"
        "print(sum(kernel.stats.cache_misses.values()))\n"
        "print(dx.tobytes().hex(), sums[:2].tobytes().hex())\n"
    )

    def computed() -> list[str]:
        environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        return forks.run(["-c", "import program"], tmp_path, environment).stdout.split()

    (compiled, *first), (loaded, *second) = computed(), computed()
    assert (compiled, loaded) == ("1", "0")
    assert first == second


def test_compiled_functions_take_nothing_from_other_folders():
    """Machine code is kept until a source of its folder changes."""
    for path in sorted((CHECKOUT / "nanoeuler").rglob("*.py")):
        source = path.read_text("utf-8")
        if "\n@compiled" not in source:
            continue
        package = ".".join(path.parent.relative_to(CHECKOUT).parts)
        module = importlib.import_module(f"{package}.{path.stem}")
        used = {
            name
            for value in vars(module).values()
            if isinstance(value, Dispatcher) and value.py_func.__module__ == module.__name__
            for name in value.py_func.__code__.co_names
        }
        assert used
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("nanoeuler"):
                imported = {alias.asname or alias.name for alias in node.names}
                assert node.module.startswith(package) or not imported & used, path


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 0.5, 0.99])
def test_machine_code_that_was_cut_off_is_compiled_anew(kept, kind, left):
    for path in kept.rglob(f"*.{kind}"):
        content = path.read_bytes()
        path.write_bytes(content[: int(left * len(content))])
    (kept / "cache/nanoeuler/compiling").unlink()
    result, said = run(kept)
    assert result == "11"
    assert said.count("compiling") == 1
    assert run(kept) == ("11", "")


def test_a_flipped_bit_in_machine_code_is_not_run(kept):
    for path in kept.rglob("*.nbc"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    assert run(kept)[0] == "11"
    (kept / "cache/nanoeuler/compiling").unlink()
    assert run(kept) == ("11", ""), "it was compiled anew"


def test_a_kill_between_index_and_code_leaves_no_old_code_in_use(kept):
    old = {path: path.read_bytes() for path in kept.rglob("*.nbc")}
    (kept / "callee.py").write_text(CALLEE.format(factor=12))
    run(kept)
    for path, content in old.items():  # Numba writes the index first
        path.write_bytes(content)
    assert run(kept)[0] == "61"


def test_a_disk_that_is_full_costs_the_machine_code_and_not_the_run(folder):
    """The limit would count what a fork says, too, whose output goes to files."""
    done = subprocess.run(
        [sys.executable, "-c", MAIN],
        cwd=folder,
        env=given(folder) | {"PYTHONDONTWRITEBYTECODE": "1"},  # of this checkout's modules, cut off
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "11"
    assert done.stderr.count("cannot be kept") == 1
    assert not [*folder.rglob("*.nb?")]


def test_ctrl_c_waits_until_a_function_is_compiled(folder):
    assert run(folder, INTERRUPTED)[0] == "[(int64,)]"
    assert run(folder) == ("11", ""), "its machine code is kept"


def test_where_no_folder_can_be_written_every_run_compiles_and_says_why(folder):
    (folder / "__pycache__").write_text("a file is in the way")
    result, said = run(folder, XDG_CACHE_HOME="/dev/null/cache")
    assert result == "11"
    assert said.count("cannot be kept") == 1
    assert "NUMBA_CACHE_DIR" in said
