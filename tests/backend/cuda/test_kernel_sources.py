"""Every kernel compiles for the architectures that the engine runs on. No GPU is needed for that,
only NVIDIA's run-time compiler. Its reports are kept in the user's cache, for all checkouts: a
source, its options and the compiler give the same report again, and most runs change no kernel."""

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest

from nanoeuler.backend.cuda import attention, fused_linear
from nanoeuler.backend.cuda.decoding_sizes import (
    ATTEND_STATIC,
    BLOCK_OVERHEAD,
    BLOCK_SHARED,
    FUSED_TOKENS,
    MUCH_SHARED,
    DecodingSizes,
    many_rows_products,
)
from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.backend.cuda.kernels import FOLDER
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.storage.files import atomic_write
from nanoeuler.system.machine import cache_folder

KEPT_REPORTS = cache_folder() / "tests" / "nvrtc"
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a")
SHARED_LIMIT = 99 * 1024  # bytes of a block on an RTX 30 or 40; the big chips have more
TYPES = {
    "fp32": ("float32", "float32"),
    "bf16": ("bfloat16", "bfloat16"),
    "bf16, residual stream fp32": ("bfloat16", "float32"),
}


def compiler_library() -> Path:
    """That of nvidia-cuda-nvrtc; the kernels include none of CUDA's headers."""
    (folder,) = importlib.util.find_spec("nvidia").submodule_search_locations
    return next(Path(folder).glob("cu1*/lib/libnvrtc.so.*"))


@functools.cache
def compiler() -> list[tuple[str, str]]:
    """Names and versions of the compiler's packages."""
    packages = importlib.metadata.distributions()
    return sorted((p.name, p.version) for p in packages if p.name.startswith("nvidia"))


def compile_source(source, architecture) -> str:
    """The compiler's report, with registers and spills; fails the test when the source does not
    compile."""
    options = [
        *source.options,
        "--device-as-default-execution-space",  # as CuPy does; up to CUDA 13.0, lambdas need it
        f"--gpu-architecture={architecture}",
        "--ptxas-options=-v",
        "--no-cache",  # of the driver: what is found there comes without a report
    ]
    given = repr((compiler(), source.name, options, source.code))
    kept = KEPT_REPORTS / hashlib.sha256(given.encode()).hexdigest()
    if kept.exists():
        return kept.read_text()
    report = compile_anew(source, options)
    with contextlib.suppress(OSError, UserError):  # a cache that cannot be written
        kept.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(kept) as file:
            file.write(report)
    return report


def compile_anew(source, options: list[str]) -> str:
    library = ctypes.CDLL(str(compiler_library()))
    program, length = ctypes.c_void_p(), ctypes.c_size_t()
    assert (
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.code.encode(), source.name.encode(), 0, None, None
        )
        == 0
    )
    status = library.nvrtcCompileProgram(
        program,
        len(options),
        (ctypes.c_char_p * len(options))(*(option.encode() for option in options)),
    )
    library.nvrtcGetProgramLogSize(program, ctypes.byref(length))
    report = ctypes.create_string_buffer(length.value)
    library.nvrtcGetProgramLog(program, report)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    assert status == 0, report.value.decode()
    return report.value.decode()


def resources(report: str) -> dict[str, tuple[int, int, int]]:
    """Per kernel: registers of a thread, bytes spilled, static shared memory of a block."""
    found = {}
    for name, text in re.findall(
        r"Compiling entry function '(\w+)'(.*?)Compile time", report, re.DOTALL
    ):
        shared = re.search(r"(\d+) bytes smem", text)
        found[name] = (
            int(re.search(r"Used (\d+) registers", text)[1]),
            int(re.search(r"(\d+) bytes spill stores", text)[1]),
            int(shared[1]) if shared else 0,
        )
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("types", TYPES)
def test_every_kernel_of_base_compiles_without_spilling_registers(architecture, types):
    c = ModelConfig.from_dict({"preset": "base"})
    for source in KernelSources(*TYPES[types]).all(
        c.dim, c.heads, c.kv_heads, c.head_size, c.ffn_storage, c.vocab_size
    ):
        kernels = resources(compile_source(source, architecture))
        assert kernels, source.name
        for name, (registers, spilled, shared) in kernels.items():
            assert registers <= 255
            assert spilled == 0, f"{name} spills {spilled} bytes"
            assert shared <= min(SHARED_LIMIT, 48 * 1024), (
                f"{name} takes {shared} bytes of shared memory"
            )


def hopper_sources(types, config, row_counts=(8, 16, 32, 64), tokens=1, qk_norm=False):
    """The kernels for many rows on a chip with clusters, `tokens` of them a sequence's."""
    c = config
    query, key = c.heads * c.head_size, c.kv_heads * c.head_size
    starts = query, query + key, c.ffn_storage
    kind = qk_norm, c.family == "gpt2"
    sizes = DecodingSizes(c.dim, c.ffn_storage, c.heads, c.kv_heads, c.head_size, *starts, *kind)
    for rows in row_counts:
        assert all(product.fits for product in many_rows_products(sizes, rows).values())
        yield KernelSources(*types).many_rows_layer(sizes, rows, tokens)
        yield KernelSources(*types).many_rows_head(c.dim, c.vocab_size, rows, gpt2=kind[1])


@pytest.mark.parametrize(
    ("preset", "residual", "tokens", "qk_norm"),
    [
        ("base", "bfloat16", 1, False),
        ("base", "float32", 1, False),
        ("base", "bfloat16", 4, False),
        ("base", "bfloat16", 4, True),
        ("gpt2", "float32", 1, False),
    ],
)
def test_two_kernels_of_many_rows_fit_side_by_side(preset, residual, tokens, qk_norm):
    """So that the weights of the next one are loaded while one multiplies."""
    c = ModelConfig.from_dict({"preset": preset})
    for source in hopper_sources(("bfloat16", residual), c, tokens=tokens, qk_norm=qk_norm):
        for name, found in resources(compile_source(source, "sm_90a")).items():
            registers, spilled, static = found
            assert registers <= 128, name
            assert spilled == 0, f"{name} spills {spilled} bytes"
            assert static <= (ATTEND_STATIC if name == "attend" else 0), name
        shared = sorted(int(size) for name, size in source.constants if name.endswith("_BYTES"))
        assert sum(shared[-2:]) + BLOCK_OVERHEAD <= BLOCK_SHARED


@pytest.mark.parametrize("preset", ["base", "large", "gpt2"])
def test_a_multiprocessor_need_not_be_divided_anew_within_a_layer(preset):
    layers = hopper_sources(
        ("bfloat16",) * 2, ModelConfig.from_dict({"preset": preset}), (8, 16, 32)
    )
    for source in layers:
        if source.name == "many_rows_layer":
            largest = max(int(size) for name, size in source.constants if name.endswith("_BYTES"))
            room = source.carveout * (BLOCK_SHARED + BLOCK_OVERHEAD) // 100
            assert largest + BLOCK_OVERHEAD <= room


def test_a_carveout_gives_attention_of_64_rows_room_beside_the_product_in_front():
    """Of `base`; the product of `large` alone leaves none, and it takes that of most kernels."""
    found = {}
    for preset in ("base", "large", "gpt2"):
        config = ModelConfig.from_dict({"preset": preset})
        found[preset] = next(hopper_sources(("bfloat16",) * 2, config, (64,))).carveout
    assert found == {"base": 58, "large": MUCH_SHARED, "gpt2": MUCH_SHARED}


@pytest.mark.parametrize("head_size", [32, 64, 128])
@pytest.mark.parametrize("heads", [1, 4])
def test_as_many_tokens_of_a_sequence_as_the_engine_takes_compile(head_size, heads):
    """`heads` share a key."""
    fields = {"preset": "small", "dim": 256, "heads": heads, "kv_heads": 1, "head_size": head_size}
    config = ModelConfig.from_dict(fields)
    for source in hopper_sources(("bfloat16",) * 2, config, (8,), FUSED_TOKENS):
        compile_source(source, "sm_90a")


def prompt_source(config, residual="bfloat16", *, qk_norm=False):
    c = config
    query, key = c.heads * c.head_size, c.kv_heads * c.head_size
    starts = query, query + key, c.ffn_storage
    sizes = DecodingSizes(
        c.dim, c.ffn_storage, c.heads, c.kv_heads, c.head_size, *starts, qk_norm=qk_norm
    )
    return KernelSources("bfloat16", residual).prompt_layer(sizes)


@pytest.mark.parametrize("residual", ["bfloat16", "float32"])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("head_size", [64, 128])
def test_the_kernels_of_prompts_compile_without_spilling_registers(residual, qk_norm, head_size):
    fields = {"preset": "base", "heads": 768 // head_size, "kv_heads": 2, "head_size": head_size}
    source = prompt_source(ModelConfig.from_dict(fields), residual, qk_norm=qk_norm)
    kernels = resources(compile_source(source, "sm_90a"))
    assert kernels.keys() == {"scale_rows", "project", "output", "gate_up", "down"}
    for name, (_, spilled, static) in kernels.items():
        assert (spilled, static) == (0, 0), name
    sizes = [int(size) for name, size in source.constants if name.endswith("_BYTES")]
    assert max(sizes) <= BLOCK_SHARED


@pytest.mark.parametrize("preset", ["small", "medium", "large"])
def test_the_kernels_for_hopper_of_the_other_presets_compile(preset):
    config = ModelConfig.from_dict({"preset": preset})
    for source in hopper_sources(("bfloat16",) * 2, config, row_counts=(8, 64)):
        assert resources(compile_source(source, "sm_90a")), source.name


@pytest.mark.parametrize("preset", ["small", "medium", "large"])
def test_the_kernels_of_the_other_presets_compile(preset):
    c = ModelConfig.from_dict({"preset": preset})
    for source in KernelSources("bfloat16", "bfloat16").all(
        c.dim, c.heads, c.kv_heads, c.head_size, c.ffn_storage, c.vocab_size
    ):
        assert resources(compile_source(source, "sm_89")), source.name


def without(source, name):
    kept = tuple(constant for constant in source.constants if constant[0] != name)
    return dataclasses.replace(source, constants=kept)


@pytest.mark.parametrize(
    "source",
    [
        *KernelSources("bfloat16", "bfloat16").all(128, 4, 2, 32, 344, 512),
        attention.source("bf16", 64, 3),
        fused_linear.source("Rope"),
        *list(hopper_sources(("bfloat16",) * 2, ModelConfig.from_dict({"preset": "small"})))[:2],
        prompt_source(ModelConfig.from_dict({"preset": "base"})),
    ],
    ids=lambda source: source.name,
)
def test_a_source_does_not_compile_without_any_one_of_its_constants(source):
    for name, _ in source.constants:
        with pytest.raises(AssertionError, match=name):
            compile_source(without(source, name), "sm_90a" if source.sm_90a else "sm_80")


def test_every_source_is_compiled_by_these_tests():
    compiled = {
        source.name
        for source in KernelSources("float32", "float32").all(768, 12, 4, 64, 2048, 4096)
    }
    assert compiled == {path.stem for path in FOLDER.glob("*.cu")} - {
        "attention",
        "dropout",
        "fused_linear",
        "geglu",
        "gelu",
        "layer_norm",
        "many_rows_head",
        "many_rows_layer",
        "plain_attention",
        "prompt_layer",
        "relu2",
        "soft_cap",
        "wide_head_norm",
    }  # tests of their own compile those


def test_a_source_says_what_it_reads_and_writes():
    for path in (*FOLDER.glob("*.cu"), *FOLDER.glob("epilogue_*.cuh")):
        header = re.split("#include|struct", path.read_text())[0]
        assert all(word in header for word in ("in:", "out", "bytes")), path.name
