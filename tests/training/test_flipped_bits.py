"""A changed byte in anything that a stage reads is refused in a sentence that names the file."""

import json
import shutil

import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.config.stages import BY_SECTION
from nanoeuler.errors import UserError
from nanoeuler.interchange.accepting import accept
from nanoeuler.model.files import load_model
from nanoeuler.storage.integrity import seal
from nanoeuler.storage.record_folder import RecordFolder
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import manifest_fingerprint
from nanoeuler.tokenizer.stages import tokenize_corpus
from nanoeuler.training.loop import train
from nanoeuler.training.parents import read_parent
from nanoeuler.training.stages import module_of
from nanoeuler.training.stages.inputs import Inputs


@pytest.fixture
def start(data, tuned, trainer, tmp_path):
    """A copy of the data and of a tuned model, and a function that starts a stage on it."""
    copy = shutil.copytree(data, tmp_path / "data")
    parent = shutil.copytree(tuned, tmp_path / "parent")

    def run(stage):
        tokenizer, output = copy / "tokenizer.json", tmp_path / stage
        engine, config = ReferenceBackend(), trainer.config
        if stage == "tokenize":
            corpus = copy / "corpus" / "manifest.json"
            tokenize_corpus(corpus, tokenizer, output, config["model"]["vocab_size"])
        else:
            declared = BY_SECTION[stage]
            kind = declared.records.kind if declared.records else "tokens"
            given = parent if declared.parents else None
            settings = declared.settings.read(config[stage])
            data = copy / kind / "manifest.json"
            inputs = Inputs(config, settings, data, tokenizer, output, given)
            train(module_of(declared).job(inputs, engine))

    return run


def flip(path):
    """Change the lowest bit of a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("stage", "name", "writer"),
    [
        ("tokenize", "data/corpus/train/tales.txt", "`nanoeuler assemble`"),
        ("tokenize", "data/tokenizer.json", "`nanoeuler bpe`"),
        ("pretrain", "data/tokens/train-tales-000.bin", "`nanoeuler tokenize`"),
        ("pretrain", "data/tokens/validation-tales-000.bin", "`nanoeuler tokenize`"),
        ("pretrain", "data/tokenizer.json", "`nanoeuler bpe`"),
        ("sft", "data/instructions/train.jsonl", "`nanoeuler instructions`"),
        ("sft", "data/instructions/validation.jsonl", "`nanoeuler instructions`"),
        ("sft", "data/tokenizer.json", "`nanoeuler bpe`"),
        ("sft", "parent/model.safetensors", "the stage sft"),
        ("sft", "parent/tokenizer.json", "the stage sft"),
        ("dpo", "data/preferences/train.jsonl", "`nanoeuler preferences`"),
        ("dpo", "data/preferences/validation.jsonl", "`nanoeuler preferences`"),
        ("dpo", "parent/model.safetensors", "the stage sft"),
    ],
)
def test_a_flipped_bit_is_refused_by_the_stage_that_reads_it(start, tmp_path, stage, name, writer):
    flip(tmp_path / name)
    with pytest.raises(UserError) as caught:
        start(stage)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / name}: its bytes are not those that {writer} wrote")
    assert "; delete " in said
    assert not (tmp_path / stage / "checkpoints").exists()


@pytest.mark.parametrize("name", ["instructions/train.jsonl", "tokens/train-tales-000.bin"])
def test_a_file_that_is_gone_is_refused_in_a_sentence(start, tmp_path, name):
    (tmp_path / "data" / name).unlink()
    with pytest.raises(UserError, match=f"{name}: no such file"):
        start("sft" if "instructions" in name else "pretrain")


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found["model"].update(norm_epsilon=1e-4), "its bytes are not those that"),
        (lambda found: found["model"].update(step_size=0.5), "its bytes are not those that"),
        (lambda found: found.update(template="chat"), "its bytes are not those that"),
        (lambda found: found.pop("sha256"), "its bytes are not those that"),
        (lambda found: found.pop("seal"), "none noted"),
    ],
)
def test_a_changed_description_of_a_model_is_refused_by_all_who_read_it(
    start, tmp_path, change, words
):
    path = tmp_path / "parent" / "config.json"
    edit(path, lambda content: change(content["nanoeuler"]))
    for read in (lambda: start("sft"), lambda: start("dpo"), lambda: load_model(path.parent)):
        with pytest.raises(UserError, match=words) as caught:
            read()
        assert str(caught.value).startswith(f"{path}: ")
        assert f"nanoeuler accept {path.parent}" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(finished=True),
        lambda content: (content.update(finished=True), content.pop("seal")),
    ],
)
def test_a_checkpoint_that_claims_to_be_finished_is_not_believed(trainer, uninterrupted, change):
    trainer.config["pretrain"]["checkpoint_minutes"] = 0.001
    process = trainer.start_until(20, saved=True)
    process.kill()
    process.communicate()
    edit(trainer.checkpoints()[-1] / "state.json", change)
    said = trainer.run()
    assert "is damaged; falling back to the checkpoint before it" in said
    assert "exporting its model again" not in said
    assert trainer.weights() == uninterrupted.weights()


def test_a_damaged_best_checkpoint_is_not_exported(trainer, tuned):
    trainer.config["dpo"] |= {"keep": "best", "learning_rate": 1.0}
    trainer.run("dpo", "--parent", str(tuned))
    assert len(trainer.checkpoints("dpo")) > 1, "the best one is not the last"
    best = json.loads((trainer.checkpoints("dpo")[-1] / "state.json").read_text())["best"]["step"]
    flip(trainer.output / "dpo" / "checkpoints" / f"step-{best:08d}" / "model.safetensors")
    said = trainer.run("dpo", "--parent", str(tuned), status=1)
    assert "model.safetensors: its bytes are not those that the stage dpo wrote" in said
    assert "Traceback" not in said


def test_tokens_without_a_held_out_part_are_refused_before_training(start, tmp_path):
    path = tmp_path / "data" / "tokens" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["validation"] = {}
    path.write_text(json.dumps(manifest | {"fingerprint": manifest_fingerprint(manifest)}))
    with pytest.raises(UserError, match=r"has no held-out text; raise corpus\.validation_share"):
        start("pretrain")


# ---- what was changed on purpose


def test_a_model_that_was_changed_on_purpose_is_accepted(tuned, tmp_path):
    folder = shutil.copytree(tuned, tmp_path / "model")
    flip(folder / "model.safetensors")
    with pytest.raises(UserError, match="nanoeuler accept"):
        load_model(folder)
    assert folder / "model.safetensors" in accept(folder)
    assert load_model(folder).info["accepted"]
    model = load_model(folder)
    read_parent(folder, model.config, Tokenizer.load(model.tokenizer_path), model.tokenizer_path)


def test_a_folder_made_elsewhere_is_accepted_with_three_files(tuned, tmp_path):
    folder = shutil.copytree(tuned, tmp_path / "model")
    model = json.loads((folder / "config.json").read_text())["nanoeuler"]["model"]
    (folder / "config.json").write_text(json.dumps({"nanoeuler": {"model": model}}))
    accept(folder)
    assert load_model(folder).config == load_model(tuned).config
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="damaged or cut off"):
        accept(folder)


@pytest.mark.parametrize(
    ("key", "value"), [("info", ["odd"]), ("template", "mine"), ("template", 7), ("stage", {})]
)
def test_what_no_command_could_use_is_not_accepted(tuned, tmp_path, key, value):
    folder = shutil.copytree(tuned, tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    content["nanoeuler"][key] = value
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"config.json: .*{key}"):
        accept(folder)
    assert json.loads((folder / "config.json").read_text()) == content


def test_records_and_a_tokenizer_that_were_changed_on_purpose_are_accepted(data, tmp_path):
    copy = shutil.copytree(data, tmp_path / "data")
    records, tokenizer = copy / "instructions", copy / "tokenizer.json"
    path = records / "train.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    assert accept(records) == [path]
    assert json.loads((records / "manifest.json").read_text())["train"]["records"] == 61
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(UserError, match="nanoeuler accept"):
        Tokenizer.load(tokenizer)
    accept(tokenizer)
    Tokenizer.load(tokenizer)
    RecordFolder(records / "manifest.json", "instructions").check("train")
    path.write_text("no json\n")
    with pytest.raises(UserError, match=r"train\.jsonl, line 1: not valid JSON"):
        accept(records)


def test_what_is_nothing_of_ours_is_not_accepted(tmp_path):
    with pytest.raises(UserError, match="give one of these"):
        accept(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(seal({"version": 1})))
    with pytest.raises(UserError, match="not the manifest of records or pairs"):
        accept(tmp_path)
