"""What a stage refuses in one sentence, before or while it trains."""

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.material import environment, nanoeuler
from nanoeuler.errors import UserError
from nanoeuler.model.files import load_model


def test_a_full_disk_is_said_in_one_sentence_and_leaves_nothing_half_written(trainer):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    said = trainer.run(status=1, preexec_fn=limit)
    assert "the disk is full" in said
    assert "Traceback" not in said
    assert not (trainer.output / "pretrain" / "model").exists()
    assert trainer.checkpoints() == []
    assert [path.name for path in (trainer.output / "pretrain" / "checkpoints").iterdir()] == []


def test_text_shorter_than_a_row_is_said_before_training(trainer):
    trainer.config["model"]["context"] = 100_000
    assert (
        "fewer than one row of model.context = 100000; add text or lower model.context"
        in trainer.run(status=1)
    )


def test_little_text_for_the_model_is_said_before_training(trainer):
    trainer.config["pretrain"]["tokens"] = 1_000_000
    process = trainer.start_until(1)
    process.kill()
    _, said = process.communicate()
    assert "most of the text will be memorised" in said


def test_a_tokenizer_of_another_run_is_refused(trainer, smaller_tokenizer):
    said = trainer.run("pretrain", "--tokenizer", str(smaller_tokenizer), status=1)
    assert "made with another tokenizer" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_a_vocabulary_of_another_size_than_the_parent_s_is_refused(
    trainer, tuned, smaller_tokenizer, stage
):
    arguments = ["--parent", str(tuned), "--tokenizer", str(smaller_tokenizer)]
    said = trainer.run(stage, *arguments, status=1)
    assert f"{tuned}: was trained with another tokenizer than {smaller_tokenizer}" in said
    assert "Traceback" not in said


def test_a_vocabulary_of_another_size_than_the_model_s_is_refused(trainer, smaller_tokenizer):
    said = trainer.run("sft", "--tokenizer", str(smaller_tokenizer), status=1)
    assert f"model.vocab_size is 288 but {smaller_tokenizer} has 287 entries" in said
    assert "make them equal (tokenizer.vocab_size sets both)" in said


@pytest.fixture
def other_tokenizer(data, tmp_path) -> Path:
    """A tokenizer of as many entries as that of the tiny data, two of which have other ids."""
    content = json.loads((data / "tokenizer.json").read_text())
    merges, vocab = content["model"]["merges"], content["model"]["vocab"]
    merges[:2] = merges[1::-1]  # the first merges join bytes, so neither needs the other
    first, second = sorted(vocab, key=vocab.get)[len(vocab) - len(merges) :][:2]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path = tmp_path / "other.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_another_vocabulary_of_the_parent_s_size_is_refused(trainer, tuned, other_tokenizer, stage):
    arguments = ["--parent", str(tuned), "--tokenizer", str(other_tokenizer)]
    said = trainer.run(stage, *arguments, status=1)
    assert f"{tuned}: was trained with another tokenizer than {other_tokenizer}" in said


@pytest.mark.parametrize("parent", ["", "model", "checkpoints/step-00000060"])
def test_pretraining_goes_on_from_no_model_with_another_tokenizer(
    trainer, uninterrupted, other_tokenizer, parent
):
    """As many entries and as many fields, but each id stands for other text."""
    tokens = trainer.output / "tokens"
    corpus = ["--corpus", str(trainer.data / "corpus" / "manifest.json")]
    config = ["--config", '{"tokenizer": {"vocab_size": 288}}']
    given = ["--tokenizer", str(other_tokenizer)]
    made = nanoeuler("tokenize", *config, *corpus, *given, "--output", str(tokens))
    subprocess.run(made, check=True, env=environment())
    folder = uninterrupted.output / "pretrain" / parent
    trainer.config["pretrain"]["init_from"] = str(folder)
    given += ["--tokens", str(tokens / "manifest.json")]
    said = trainer.run("pretrain", *given, status=1)
    assert f"was trained with another tokenizer than {other_tokenizer}" in said
    assert "set tokenizer.path to a folder with the model's own" in said
    assert "Traceback" not in said
    assert not (trainer.output / "pretrain" / "model").exists()


def test_a_flipped_byte_in_a_model_is_noticed(trainer, uninterrupted):
    shutil.copytree(uninterrupted.output, trainer.output, dirs_exist_ok=True)
    weights = trainer.output / "pretrain" / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match="its bytes are not those that the stage pretrain wrote"):
        load_model(weights.parent)


@pytest.mark.parametrize("missing", [("pretrain",), ("pretrain", "learning_rate"), ("seed",)])
def test_an_inline_configuration_that_lacks_a_key_is_told_which(trainer, missing):
    section = trainer.config
    for key in missing[:-1]:
        section = section[key]
    del section[missing[-1]]
    said = trainer.run(status=1)
    assert f"inline JSON without the key '{missing[-1]}'" in said
    assert "Traceback" not in said


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux keeps to a limit on a process's memory"
)
def test_a_full_memory_is_told_with_what_would_help(trainer):
    def two_gigabytes():
        resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))

    model = dict(trainer.config["model"])
    trainer.config["model"] |= {"dim": 2**15}
    said = trainer.run(status=1, preexec_fn=two_gigabytes)
    assert (
        "GB whatever pretrain.micro_batch_rows and pretrain.recompute are: take a smaller model"
        in said
    )
    trainer.config["model"] = model
    trainer.config["pretrain"] |= {
        "tokens": 2**21,
        "batch_tokens": 2**21,
        "micro_batch_rows": 2**17,
    }
    said = trainer.run(status=1, preexec_fn=two_gigabytes)
    assert (
        "set pretrain.micro_batch_rows: 512 (the result stays the same within rounding) "
        "or take a smaller model" in said
    )
    trainer.config["pretrain"] |= {"batch_tokens": 2048, "micro_batch_rows": 1}
    trainer.config["model"] |= {"context": 2048, "ffn": 200_000}
    said = trainer.run(status=1, preexec_fn=two_gigabytes)
    assert (
        "a single row does not fit: set pretrain.recompute: true, "
        "or take a smaller model or a shorter context" in said
    )
