"""A mistake in a configuration gets one sentence with line, key and remedy."""

import json
from pathlib import Path

import pytest

from nanoeuler.config import load
from nanoeuler.errors import UserError

MISTAKES = {
    "an unknown key": (
        {"learning_rate": "1", "added": "pretran: {}"},
        r"line 9: unknown key pretran; did you mean pretrain\?",
    ),
    "a key of another section": (
        {"added": "warmup_steps: 3"},
        r"line 9: unknown key warmup_steps; "
        r"did you mean pretrain.warmup_steps or sft.warmup_steps or dpo.warmup_steps or "
        r"rl.warmup_steps\?",
    ),
    "an unknown key inside": (
        {"added": "corpus: {fineweb: {min_scor: 3}}"},
        r"line 9: unknown key corpus.fineweb.min_scor; did you mean corpus.fineweb.min_score\?",
    ),
    "an unknown key like no other": (
        {"added": "zzz: 1"},
        r"unknown key zzz; known here: run, seed",
    ),
    "a decimal comma": (
        {"added": "sft: {learning_rate: 0,1}"},
        r"line 9: unknown key sft.1; a comma parts keys: write a number without one, such as 0.1",
    ),
    "a question mark in brackets, which Snakemake does not read": (
        {"added": "evaluate: {prompts: [Who are you?]}"},
        r"line 9: not valid YAML: expected ',' or '\]', but got '\?'; check .* the quotes there",
    ),
    "text for a number": (
        {"learning_rate": "fast"},
        r"line 8: pretrain.learning_rate must be a number above 0 and at most 1, "
        r'not "fast" \(peak learning rate\)',
    ),
    "a number out of range": (
        {"learning_rate": "30"},
        r"pretrain.learning_rate must be a number above 0 and at most 1, not 30",
    ),
    "infinity": (
        {"learning_rate": ".inf"},
        r"pretrain.learning_rate must be a number above 0 and at most 1, not Infinity",
    ),
    "nan": (
        {"learning_rate": ".nan"},
        r"pretrain.learning_rate must be a number above 0 and at most 1, not NaN",
    ),
    "a fraction for a count": (
        {"tokens": "1.5"},
        r"line 6: pretrain.tokens must be a whole number of at least 1, not 1.5",
    ),
    "truth for a count": (
        {"tokens": "true"},
        r"pretrain.tokens must be a whole number of at least 1, not true",
    ),
    "truth for text": (
        {"run": "false"},
        r"line 2: run must be a name .* not false; put the text in quotes",
    ),
    "yes for truth": (
        {"added": "sft: {enabled: yes}"},
        r'line 9: sft.enabled must be true or false, not "yes"; write true or false',
    ),
    "a run that is no file name": (
        {"run": "a/b"},
        r'run must be a name of at most 200 letters, digits, dots, .* not "a/b"',
    ),
    "an unknown preset": (
        {"model": "{preset: huge}"},
        r'line 4: model.preset must be "small", "medium", "base", "large", "gpt2", "gpt2-tiny" or '
        r'null, not "huge"',
    ),
    "a longer context of a GPT-2": (
        {"model": "{preset: gpt2-tiny}", "added": "sft: {context: 256}"},
        r"sft.context is 256, but model.family gpt2 has learned 128 positions; leave it out",
    ),
    "heads that do not divide": (
        {"model": "{preset: small, heads: 5}"},
        r"line 4: model.heads is 5, which does not divide model.dim = 128",
    ),
    "key heads that do not divide": (
        {"model": "{preset: small, kv_heads: 3}"},
        r"line 4: model.kv_heads is 3, which does not divide model.heads = 4",
    ),
    "a model without fields": ({"model": "{dim: 64}"}, r"line 4: the model section lacks"),
    "a vocabulary too small": (
        {"added": "tokenizer: {vocab_size: 271}"},
        r"tokenizer.vocab_size must be a whole number of at least 272 .* "
        r"not 271 .*16 reserved ids and the 256 bytes",
    ),
    "two vocabularies": (
        {"model": "{preset: small, vocab_size: 512}", "added": "tokenizer: {vocab_size: 1024}"},
        r"line 4: model.vocab_size is 512 and tokenizer.vocab_size 1024; "
        r"leave out model.vocab_size",
    ),
    "a batch below a row": (
        {"batch_tokens": "64"},
        r"line 7: pretrain.batch_tokens is 64, less than one row of 128 tokens; "
        r"give a multiple of 128",
    ),
    "growth of layers that cannot be halved": (
        {"model": "{preset: small, layers: 5}", "added": "  grow_at: [100]"},
        r"line 9: pretrain.grow_at is \[100\], but model.layers = 5 is no multiple of 2, .*",
    ),
    "growth behind the last step": (
        {"added": "  grow_at: [245]"},
        r"line 9: pretrain.grow_at is \[245\], but training has 245 steps; .*",
    ),
    "short rows to the end": (
        {"added": "  short_rows_until: 245"},
        r"line 9: pretrain.short_rows_until is 245, but training has 245 steps; give less, .*",
    ),
    "adapters of a rank above the width": (
        {"added": "sft: {lora: {rank: 129}}"},
        r"line 9: sft.lora.rank is 129, above model.dim = 128, .*; lower it",
    ),
    "adapters of no rank": (
        {"added": "sft: {lora: {rank: 0}}"},
        r"line 9: sft.lora.rank must be a whole number of at least 1, not 0",
    ),
    "adapters that drop everything": (
        {"added": "dpo: {lora: {dropout: 1.0}}"},
        r"line 9: dpo.lora.dropout must be a number of at least 0 and below 1, not 1.0 .*",
    ),
    "adapters of matrices that another family has": (
        {"added": "sft: {lora: {targets: [c_attn]}}"},
        r"line 9: sft.lora.targets has 'c_attn', and the blocks of this model have q_proj, .*",
    ),
    "a book that is not listed": (
        {"added": "corpus: {books: [84, 5]}"},
        r"corpus.books names book 5, which the sources file does not list; add it there",
    ),
    "more shards than there are": (
        {"added": "corpus: {fineweb: {shards: 3}}"},
        r"corpus.fineweb.shards is 3, but the sources file lists 1; add shards there",
    ),
    "more files than there are": (
        {"added": "corpus: {sources: [documents], documents: {files: 3}}"},
        r"corpus.documents.files is 3, but the sources file lists 2; add files there",
    ),
    "page lengths exchanged": (
        {"added": "corpus: {fineweb: {min_characters: 9, max_characters: 8}}"},
        r"min_characters is above max_characters",
    ),
    "an unknown kind of repetition": (
        {"added": "corpus: {deduplicate: {web: fuzzy}}"},
        r'line 9: corpus.deduplicate.web must be "near", "exact" or "none", not "fuzzy"',
    ),
    "repetitions of an unknown kind of source": (
        {"added": "corpus: {deduplicate: {page: near}}"},
        r"line 9: unknown key corpus.deduplicate.page",
    ),
    "documents hardly alike": (
        {"added": "corpus: {deduplicate: {threshold: 0.4}}"},
        r"line 9: corpus.deduplicate.threshold .*0.5.*0.4",
    ),
    "a likeness above all": (
        {"added": "corpus: {deduplicate: {threshold: 80}}"},
        r"line 9: corpus.deduplicate.threshold .*1.*80",
    ),
    "a half-hearted check": (
        {"added": "corpus: {decontaminate: maybe}"},
        r"line 9: corpus.decontaminate .*true or false.*maybe",
    ),
    "unknown instructions": (
        {"added": "sft: {instructions: dolly}"},
        r"sft.instructions is 'dolly', neither a name in the sources file "
        r"\(there: alpaca\) nor a file",
    ),
    "unknown questions": (
        {"added": "evaluate: {questions: trivia}"},
        r"evaluate.questions is 'trivia', which the sources file does not have "
        r"\(there: world\)",
    ),
    "an unknown task": (
        {"added": "evaluate: {tasks: [{name: boolq}]}"},
        r"line 9: evaluate.tasks: boolq: no name under tasks in the sources file",
    ),
    "a task of no kind": (
        {"added": "evaluate: {tasks: [{name: boolq, url: boolq.jsonl}]}"},
        r"line 9: evaluate.tasks: boolq: boolq is no kind of task; give kind as one of hellaswag",
    ),
    "a task named twice": (
        {"added": "evaluate: {tasks: [{name: piqa, url: a.jsonl}, {name: piqa, url: b.jsonl}]}"},
        r"evaluate.tasks.1 is the second one named piqa; give it another name",
    ),
    "a limit of none": (
        {"added": "evaluate: {tasks: [{name: piqa, url: a, limit: 0}]}"},
        r"limit must be a whole number of at least 1 or null, not 0",
    ),
    "own text that is not there": (
        {"added": "corpus: {sources: [gutenberg, novel.txt]}"},
        r"line 9: novel.txt: no such file or folder; correct the path",
    ),
    "a key given twice": ({"added": "run: again"}, r"line 9: run is given twice; keep one of them"),
    "a tab": ({"added": "corpus:\n\tname: x"}, r"line 10: not valid YAML"),
    "a missing sources file": (
        {"sources": "nowhere.yaml"},
        r"line 3: sources is 'nowhere.yaml', and there is no such file",
    ),
    "a section that is none": (
        {"added": "corpus: all"},
        r'line 9: corpus must be a section of keys, not "all"',
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_line_and_remedy(write_config, mistake):
    arguments, message = MISTAKES[mistake]
    path = write_config(**arguments)
    with pytest.raises(UserError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named_with_its_meaning(write_config, tmp_path):
    path = Path(write_config())
    path.write_text(path.read_text().replace("  tokens: 1000000\n", ""))
    with pytest.raises(
        UserError, match=r"pretrain.tokens is missing; give it \(tokens to train on"
    ):
        load(path)


def test_a_mistake_on_the_command_line_is_told_from_one_in_the_file(write_config):
    with pytest.raises(
        UserError,
        match=r"^the command line: unknown key sft.learnin_rate; did you mean sft.learning_rate\?",
    ):
        load(write_config("sft: {epochs: 1}"), overrides=["sft.learnin_rate=1"])
    with pytest.raises(UserError, match=r"write section.key=value"):
        load(write_config(), overrides=["seed"])
    with pytest.raises(UserError, match="epochs was given as a value before"):
        load(write_config(), overrides=["sft.epochs=1", "sft.epochs.x=1"])
    with pytest.raises(UserError, match="not valid YAML"):
        load(write_config(), overrides=["corpus.books=[84"])
    with pytest.raises(UserError) as refusal:
        load(write_config(), overrides=["a" * 10_000])
    assert len(str(refusal.value)) < 300


def test_a_mistake_in_the_sources_file_is_named_there(write_config, tmp_path):
    path = write_config()
    sources = (tmp_path / "sources.yaml").read_text()
    (tmp_path / "sources.yaml").write_text(sources.replace("mirror:", "miror:"))
    with pytest.raises(
        UserError,
        match=r"sources.yaml, line 2: unknown key gutenberg.miror; did you mean gutenberg.mirror\?",
    ):
        load(path)
    (tmp_path / "sources.yaml").write_text(
        sources.replace("alpaca.json", "alpaca.json, sha256: abc")
    )
    with pytest.raises(
        UserError,
        match=r"instructions.alpaca.sha256 must be 64 hexadecimal digits or null, not \"abc\"",
    ):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "run is missing"),
        ("- a\n- b", "holds list instead of keys"),
        ("a: [1, 2", "not valid YAML"),
        (b"run: \xff", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=message):
        load(path)


@pytest.mark.parametrize("key", ["data_dir", "results_dir"])
@pytest.mark.parametrize("folder", ["-o", "a{b", "a}", "{id}", "a\nb", "a\x1b[2J"])
def test_folders_of_outputs_have_names_that_mean_nothing(write_config, key, folder):
    path = write_config(f"\n{key}: {json.dumps(folder)}\n")
    with pytest.raises(UserError, match=rf"config\.yaml, line \d+: {key} is .*; give a folder"):
        load(path)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        load(tmp_path / "missing.yaml")
    with pytest.raises(UserError, match="a folder"):
        load(tmp_path)
    with pytest.raises(UserError, match="inline JSON"):
        load('{"run": ')


@pytest.mark.parametrize("kind", ["instructions", "preferences", "questions", "tasks"])
@pytest.mark.parametrize("name", ["../..", ".", "a/b", "/tmp/x", ""])
def test_a_name_in_the_sources_file_leads_to_no_other_folder(write_config, tmp_path, kind, name):
    path = write_config()
    (tmp_path / "sources.yaml").write_text(f'{kind}:\n  "{name}": {{url: records.jsonl}}\n')
    with pytest.raises(UserError, match=rf"sources\.yaml, line 2: {kind} has the name '{name}'"):
        load(path)


@pytest.mark.parametrize("name", ["sources", "instructions", "questions"])
def test_a_name_that_does_not_end_is_shortened_in_its_sentence(write_config, name):
    """A path of up to some 300 characters is shown whole."""
    long, arguments = "a" * 5000, {"sources": "a" * 5000}
    if name != "sources":
        stage = {"instructions": "sft", "questions": "evaluate"}[name]
        arguments = {"added": f"{stage}: {{{name}: {long}}}"}
    with pytest.raises(UserError, match="a…") as caught:
        load(write_config(**arguments))
    assert len(str(caught.value)) < 1000
