"""How many replies are written at a time, and how long they may be, follows from the memory."""

import json

import pytest

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.model.cache import CachePool
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import make_blocks
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.serving.fitting import Room, fit
from nanoeuler.system.machine import free_memory
from tests.inference.conftest import FIELDS, wide_parameters
from tests.serving.server import ServerProcess

GB = 10**9


class Sized:
    """A model of which nothing but its sizes is looked at: weights would take gigabytes."""

    def __init__(self, backend, in_bytes=False, **fields):
        self.backend, self.config = backend, ModelConfig.from_dict(FIELDS | fields)
        self.caches = CachePool(backend, make_blocks(self.config), in_bytes=in_bytes)


@pytest.fixture(scope="module")
def cpu():
    from nanoeuler.backend import make_backend

    return make_backend("cpu")


@pytest.fixture
def long_model(cpu):
    """0.13 MB a token: 16 layers, 8 heads of 128."""
    wide = {"dim": 1024, "heads": 8, "kv_heads": 8, "head_size": 128, "layers": 16}
    return Sized(cpu, **wide, context=131_072)


def bytes_of(model, room):
    """On a CPU: the rows, and the prompt that is read."""
    return (room.rows + 1) * room.context * model.caches.token_bytes


def test_a_token_takes_keys_and_values_of_all_layers(long_model, cpu):
    assert long_model.caches.token_bytes == 2 * 4 * 16 * 8 * 128
    rounded = Sized(cpu, in_bytes=True, dim=1024, heads=8, kv_heads=8, head_size=128, layers=16)
    assert rounded.caches.token_bytes == 2 * 16 * 8 * (128 + 4)


def test_what_fits_is_kept(cpu, long_model):
    short = Sized(cpu)
    assert fit(short, None, None, GB) == Room(32, 96)  # the CPU engine's most rows
    assert fit(short, 3, 40, GB) == Room(3, 40)
    assert fit(long_model, None, None, 10_000 * GB) == Room(32, 131_072)


@pytest.mark.parametrize("free", [3 * GB, 8 * GB, 40 * GB, 400 * GB])
def test_rows_are_fewer_first_then_the_context_is_shorter(long_model, free, capsys):
    log.start()
    room = fit(long_model, None, None, free)
    assert room.rows == 4 or room.context == 131_072
    assert 0.8 * free < bytes_of(long_model, room) <= free
    said = capsys.readouterr().err
    log.LOGGER.handlers.clear()
    assert "--rows and --context choose otherwise" in said
    assert f"{room.rows} rows of {room.context:,} tokens" in said


def test_what_was_given_is_kept_and_the_other_gives_way(long_model):
    assert fit(long_model, 16, None, 40 * GB).rows == 16
    assert fit(long_model, None, 65_536, 200 * GB).context == 65_536
    assert fit(long_model, None, 65_536, 20 * GB) == Room(1, 65_536)


@pytest.mark.parametrize("given", [(16, 131_072), (None, 131_072), (16, None), (None, None)])
def test_what_cannot_fit_is_refused(long_model, given):
    with pytest.raises(UserError, match="do not fit into") as caught:
        fit(long_model, *given, 10_000_000, "a-model")
    assert "a-model" in str(caught.value)
    assert "--rows" in str(caught.value)


def test_a_server_keeps_to_the_context_that_it_was_given(tmp_path, base_folder):
    with ServerProcess(tmp_path, base_folder, "--context", 32) as server:
        (model,) = json.loads(server.get("/v1/models").data)["data"]
        assert model["nanoeuler"]["context"] == 32
        asked = {"model": model["id"], "prompt": "word " * 20, "max_tokens": 2000}
        refused = json.loads(server.post("/v1/completions", asked).data)["error"]
        assert "the model's context is 32" in refused["message"]
        asked["prompt"] = "The"
        answered = json.loads(server.post("/v1/completions", asked).data)
        assert answered["usage"]["total_tokens"] <= 33
        assert "Traceback" not in server.log


def test_a_model_of_a_long_context_is_served(tmp_path, tokenizer_path):
    """All rows at full context would take 145 GB. A long one is dear to start: it has tables."""
    config = ModelConfig.from_dict(FIELDS | {"context": 1 << 20, "kv_heads": 4, "layers": 16})
    saved = SavedModel(config, wide_parameters(config), tokenizer_path, "pretrain", None)
    save_model(tmp_path / "long", saved)
    with ServerProcess(tmp_path, tmp_path / "long") as server:
        (model,) = json.loads(server.get("/v1/models").data)["data"]
        asked = {"model": model["id"], "prompt": "The", "max_tokens": 3}
        assert server.post("/v1/completions", asked).status == 200
        assert "cache" in server.log


@pytest.mark.parametrize(
    ("files", "free"),
    [
        pytest.param(
            {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8000 kB\n"}, 8_192_000, id="all"
        ),
        pytest.param(
            {
                "proc/meminfo": "MemAvailable: 8000 kB\n",
                "proc/self/cgroup": "0::/jobs/one\n",
                "sys/fs/cgroup/jobs/memory.max": "5000000\n",
                "sys/fs/cgroup/jobs/memory.current": "2000000\n",
                "sys/fs/cgroup/jobs/one/memory.max": "max\n",
                "sys/fs/cgroup/jobs/one/memory.current": "1000\n",
            },
            3_000_000,
            id="a group above allows less",
        ),
        pytest.param(
            {
                "proc/meminfo": "MemAvailable: 8000 kB\n",
                "proc/self/cgroup": "4:memory:/docker/abc\n0::/docker/abc\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000\n",
            },
            3_000_000,
            id="a container by version 1",
        ),
    ],
)
def test_free_memory_is_what_machine_and_control_groups_leave(tmp_path, files, free):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory(tmp_path) == free
