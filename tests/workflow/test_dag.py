"""Which rules run again after a change, by real Snakemake processes with stubs for the stages."""

import base64
import json
import os
import shutil
import time

import pytest
import yaml
from stub_checkout import EVERY_STAGE, ROOT, Checkout

from nanoeuler.config import read_resolved

REPORT = {"write_report": 1, "all": 1}
DPO = {"dpo": 1, "evaluate_model": 1} | REPORT
SFT = {"sft": 1, "sft_scratch": 1, "dpo": 1, "evaluate_model": 3} | REPORT
PRETRAIN = {"pretrain": 1, "sft": 1, "dpo": 1, "evaluate_model": 3} | REPORT
TRAINING = {"pretrain": 1, "sft": 1, "sft_scratch": 1, "dpo": 1, "evaluate_model": 4} | REPORT
TOKENS = {"learn_bpe": 1, "tokenize": 1} | TRAINING
CHECK = {"check_gradients": 1}
FIT = {"check_fit": 1}


def test_a_fresh_checkout_runs_every_stage(checkout):
    assert checkout.planned() == EVERY_STAGE


DEPLOYED = """
configfile: "config/config.yaml"


module nanoeuler:
    snakefile:
        "{}/workflow/Snakefile"
    config:
        config


use rule * from nanoeuler
"""


def test_a_deployed_copy_runs_in_a_folder_of_its_own(checkout, tmp_path):
    """As snakedeploy writes it: config, profiles and a Snakefile that takes ours as a module."""
    deployed = Checkout(tmp_path / "deployed")
    for part in ("config", "profiles", "sources.yaml"):
        deployed.path.mkdir(exist_ok=True)
        (checkout.path / part).rename(deployed.path / part)
    deployed.write("workflow/Snakefile", DEPLOYED.format(checkout.path))
    assert "Learning a byte-level BPE of 512 entries" in deployed.run("tokenize")
    assert deployed.calls[0].startswith("plan ")
    assert (deployed.path / "data/corpora/shared/tokens-512/manifest.json").exists()
    assert not (checkout.path / "data").exists()


def test_tokens_are_indexed_where_the_configuration_asks_for_it(checkout):
    assert checkout.planned("--config", "index=true") == EVERY_STAGE | {"index": 1}


def test_the_catalog_finds_what_it_reads():
    catalog = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert catalog["report"] is True
    assert set(catalog["software-stack-deployment"]) == {"conda", "apptainer", "apptainer+conda"}
    assert all((ROOT / file).is_file() for file in ("workflow/Snakefile", "config/README.md"))


def test_a_second_run_does_nothing(done):
    before = done.calls
    assert "Nothing to be done" in done.run()
    assert done.calls == before


def test_a_run_keeps_its_configuration_and_what_needs_what_for_the_report(finished):
    kept = json.loads((finished.path / "results/trial/pipeline.json").read_text())
    assert {rule: entry["jobs"] for rule, entry in kept["rules"].items()} == EVERY_STAGE
    assert kept["rules"]["tokenize"]["needs"] == ["build_corpus", "learn_bpe"]
    order = list(kept["rules"])
    assert all(
        order.index(needed) < order.index(rule)
        for rule, entry in kept["rules"].items()
        for needed in entry["needs"]
    )
    assert kept["config"]["corpus"]["name"] == "shared"


def test_one_stage_alone_keeps_its_settings_for_comparisons(checkout, done):
    """And the rules of a whole run are not replaced by those of a part."""
    for place in (checkout, done):
        place.run("pretrain", "--config", "pretrain={learning_rate: 0.001}")
    kept, whole = (
        json.loads((each.path / "results/trial/pipeline.json").read_text())
        for each in (checkout, done)
    )
    assert kept["config"]["pretrain"]["learning_rate"] == 0.001
    assert whole["config"]["pretrain"]["learning_rate"] == 0.001
    assert {"build_corpus", "pretrain"} < kept["rules"].keys()
    assert not {"sft", "write_report"} & kept["rules"].keys()
    assert "write_report" in whole["rules"]


def test_downloads_alone_are_no_run(checkout):
    checkout.run("download")
    assert not (checkout.path / "results/trial/pipeline.json").exists()


def test_a_run_notes_its_jobs_so_that_each_can_tell_the_time_left_of_all(finished):
    noted = json.loads((finished.path / "results/trial/jobs.json").read_text())["jobs"]
    rules = [job["rule"] for job in noted.values()]
    assert {rule: rules.count(rule) for rule in rules} == {
        rule: count for rule, count in EVERY_STAGE.items() if rule != "all"
    }
    assert noted["results/trial/pretrain/train.log"]["output"] == (
        "results/trial/pretrain/model/model.safetensors"
    )


def test_snakemakes_own_report_lists_results_with_captions_by_category(finished, tmp_path):
    finished.run("--report", str(tmp_path / "report.html"))
    html = (tmp_path / "report.html").read_text()
    for category in ("Run", "Scores", "Checks"):
        assert f'"{category}"' in html
    for caption in (
        "The report of the run trial: what it learned",
        "The scores of every stage of trial side by side",
        "All that was measured of the model behind the stage sft_scratch",
        "Every gradient against central differences",
    ):
        assert caption in html


CHANGES = {
    "the learning rate of fine-tuning": ("sft: {", "sft: {learning_rate: 1e-4, ", SFT),
    "the beta of the preference loss": ("dpo: {", "dpo: {beta: 0.3, ", DPO),
    "the learning rate of pretraining": ("3.0e-3", "1e-3", PRETRAIN),
    "the size of the model": ("{preset: small}", "{preset: small, layers: 2}", TRAINING | CHECK),
    "the vocabulary": (
        "run: trial",
        "run: trial\ntokenizer: {vocab_size: 1024}",
        TOKENS | CHECK | FIT,
    ),
    "one more shard": (
        "{name: shared}",
        "{name: shared, fineweb: {shards: 2}}",
        {"extract_fineweb": 1, "build_corpus": 1} | TOKENS,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_configuration_reruns_what_it_can_change(done, change):
    old, new, expected = CHANGES[change]
    done.replace("config/config.yaml", old, new)
    assert done.planned() == expected


def test_a_dry_run_says_which_settings_changed(done):
    change = ("--config", "pretrain={tokens: 2000000, keep: best}", "seed=7")
    said = done.run("-n", "pretrain", *change)
    [reason] = [line for line in said.splitlines() if "Params have changed" in line]
    assert 'pretrain.keep "final" → "best", ' in reason
    assert "pretrain.tokens 1000000 → 2000000, " in reason
    assert reason.endswith("seed 1 → 7")
    assert "{" not in reason


def test_a_change_that_cannot_change_a_result_reruns_nothing(done):
    done.replace(
        "config/config.yaml",
        "run: trial",
        "run: trial\ndevice: cpu\nmax_hours: 1\nslurm: {account: abc, hours: 3}",
    )
    done.replace(
        "config/config.yaml",
        "4096,",
        "4096, log_every: 1, checkpoint_minutes: 1, validate_every: 7, micro_batch_rows: 2,",
    )
    done.replace(
        "config/config.yaml",
        "{preset: small}",
        "{dim: 128, heads: 4, kv_heads: 2, layers: 4, context: 128, ffn: 341, vocab_size: 512}",
    )
    done.replace("sources.yaml", "https://mirror.example", "https://other.example")
    for name in ("corpus", "tokenizer", "training", "evaluation"):
        done.replace(f"workflow/rules/{name}.smk", "python -m nanoeuler ", "python  -m  nanoeuler ")
    assert done.planned() == {}


def test_one_more_book_fetches_that_book_only(done):
    done.replace("sources.yaml", "{id: 1342}", "{id: 1342}, {id: 11}")
    assert done.planned() == {"fetch_book": 1, "clean_book": 1, "build_corpus": 1} | TOKENS


def test_a_second_run_of_another_size_shares_the_data(done):
    done.write(
        "other.yaml",
        (done.path / "config/config.yaml")
        .read_text()
        .replace("run: trial", "run: other")
        .replace("preset: small", "preset: small, layers: 2"),
    )
    assert done.planned("--configfile", "other.yaml") == TRAINING | CHECK | FIT
    done.run("--configfile", "other.yaml")
    assert done.planned() == {}


def later(path) -> None:
    os.utime(path, (time.time() + 10, time.time() + 10))


def test_a_download_that_was_killed_is_not_all_that_the_next_run_does(done):
    """Snakemake notes which outputs are on their way, and a killed one leaves its notes behind."""
    book = "data/gutenberg/classics/raw/pg84.txt"
    assert (done.path / book).exists()
    (done.path / ".snakemake/incomplete" / base64.urlsafe_b64encode(book.encode()).decode()).touch()
    for output in ("clean/pg84.txt", "clean/pg84.json"):
        (done.path / "data/gutenberg/classics" / output).unlink()
    (done.path / "results/trial/report.html").unlink()
    assert {"fetch_book": 1, "clean_book": 1, "write_report": 1}.items() <= done.planned().items()


KILLED = (
    ("clean_book",),
    ("learn_bpe",),
    ("pretrain",),
    ("fetch_instructions", "fetch_book"),
    ("fetch_preferences", "clean_book"),
    ("extract_fineweb", "fetch_instructions"),
)


@pytest.mark.parametrize("killed", KILLED, ids=" and ".join)
def test_after_a_kill_the_next_run_goes_on_behind_the_jobs_that_it_repeats(done, killed):
    """The outputs of one or two jobs are half-made, and nothing that needs them is there."""
    run = done.path / "results/trial"
    rules = json.loads((run / "pipeline.json").read_text())["rules"]
    behind = set(killed)
    for name, entry in rules.items():  # each stands behind what it needs
        behind |= {name} if behind & set(entry["needs"]) else set()
    marks = done.path / ".snakemake/incomplete"
    for job in json.loads((run / "jobs.json").read_text())["jobs"].values():
        output = done.path / job["output"]
        if job["rule"] in killed:
            (marks / base64.urlsafe_b64encode(job["output"].encode()).decode()).touch()
        elif job["rule"] in behind and output.is_dir():
            shutil.rmtree(output)
        elif job["rule"] in behind:
            output.unlink()
    assert {name: rules[name]["jobs"] for name in behind}.items() <= done.planned().items()


def test_a_run_that_was_killed_in_its_first_download_goes_on_to_the_end(done):
    """Nothing but the half-made book is there, as it may well be after the first seconds."""
    book = "data/gutenberg/classics/raw/pg1342.txt"
    for folder in (*(done.path / "data").rglob("*"), *(done.path / "results").rglob("*")):
        if folder.is_file() and folder != done.path / book:
            folder.unlink()
    (done.path / ".snakemake/incomplete" / base64.urlsafe_b64encode(book.encode()).decode()).touch()
    assert done.planned() == EVERY_STAGE


def test_touching_files_costs_no_training(done):
    for path in [
        *done.path.glob("data/gutenberg/classics/*/*.txt"),
        *done.path.glob("data/fineweb/web/*/*.txt"),
    ]:
        path.write_bytes(b"x" * 1_100_000)  # above this size Snakemake compares times, not content
    for pattern in (
        "data/gutenberg/*/*/*",
        "data/fineweb/*/*/*",
        "data/corpora/*/*.json",
        "data/corpora/*/*/*",
        "data/instructions/*/*",
        "sources.yaml",
        "config/config.yaml",
    ):
        for path in done.path.glob(pattern):
            later(path)
    assert done.planned() == {}


def test_changed_code_of_the_model_checks_the_gradients_again_and_trains_nothing(done):
    with (done.path / "nanoeuler/model/spec.py").open("a") as file:
        file.write("# changed\n")
    assert done.planned() == CHECK | {"write_report": 1, "all": 1}


def test_own_text_joins_the_corpus_and_a_change_of_it_counts(done):
    done.write("my texts/novel.txt", "It was a dark night.")
    done.replace(
        "config/config.yaml",
        "{name: shared}",
        "{name: shared, sources: [gutenberg, fineweb, my texts]}",
    )
    expected = {"build_corpus": 1} | TOKENS
    assert done.planned() == expected
    done.run()
    config = read_resolved(done.path / "results/trial/configuration.json")
    assert config["corpus"]["sources"] == ["gutenberg", "fineweb", "my texts"]
    assert done.planned() == {}
    done.write("my texts/sequel.md", "It was evening.")
    assert done.planned() == expected
    done.run()
    (done.path / "my texts/novel.txt").write_text("It was a long night.")
    assert done.planned() == expected


HOSTILE = (
    *("my {draft}.txt", "{}.txt", "a\nresults_dir: INJECTED.txt", "$(touch X).txt", "`touch X`.md"),
    *("-e.txt", "--books=b.txt", "'; touch X;'.txt", '";touch X;".txt', "*.txt", "~.txt", "#.txt"),
)


def test_names_mean_nothing_to_the_workflow_and_may_be_many(done):
    """Texts do not travel on a command line, whatever and how many they are."""
    (done.path / "many").mkdir()
    for number in range(22_000):
        (done.path / f"many/{'long ' * 18}{number:05d}.txt").write_text("It was a dark night.")
    with open(os.fsencode(done.path) + b"/many/caf\xe9.txt", "w") as file:
        file.write("It was evening.")
    named = [*HOSTILE, *(f"{'my text ' * 12}{number:04d}.txt" for number in range(2_000))]
    for name in named:
        (done.path / name).write_text("It was morning.")
    sources = json.dumps(["gutenberg", "fineweb", "many", *named])
    done.replace("config/config.yaml", "{name: shared}", f"{{name: shared, sources: {sources}}}")
    expected = {"build_corpus": 1} | TOKENS
    assert done.planned() == expected
    done.run()
    given = read_resolved(done.path / "results/trial/configuration.json")
    assert given["corpus"]["sources"] == json.loads(sources)
    listed = json.loads((done.path / "data/corpora/shared/own-text.json").read_text())
    assert len(listed) == 22_001 + len(named)
    assert "many/caf\udce9.txt" in listed
    assert not (done.path / "X").exists()
    assert done.planned() == {}


def test_a_file_whose_name_begins_with_a_dash_is_no_option(done):
    done.write("--limit=1.json", "[]")
    done.write("-m/model.safetensors", "")
    done.replace(
        "config/config.yaml",
        "sft: {",
        "sft: {instructions: --limit=1.json, init_from: -m, ",
    )
    done.run("sft")
    said = "\n".join(done.calls)
    assert " --name=--limit=1.json --output=data/instructions/limit-1-json-" in said
    assert " --parent=-m --output results/trial/sft" in said


def test_a_task_is_fetched_once_kept_out_of_the_corpus_and_scored_for_every_model(done):
    done.replace(
        "config/config.yaml", "{questions: world}", "{questions: world, tasks: [{name: piqa}]}"
    )
    assert done.planned("build_corpus") == {"fetch_task": 1, "build_corpus": 1}
    done.run("build_corpus")
    assert "--kept-out data/questions/world.jsonl data/tasks/piqa/manifest.json --threads" in next(
        call for call in reversed(done.calls) if call.startswith("assemble")
    )


def test_a_task_that_the_corpus_may_quote_is_scored_without_training_again(done):
    done.replace("config/config.yaml", "{name: shared}", "{name: shared, decontaminate: false}")
    done.run()
    done.replace(
        "config/config.yaml",
        "{questions: world}",
        "{questions: world, tasks: [{name: piqa}, {name: quiz, limit: 5}]}",
    )
    assert (
        done.planned()
        == {"fetch_task": 2, "evaluate_model": EVERY_STAGE["evaluate_model"]} | REPORT
    )
    done.run()
    call = next(call for call in reversed(done.calls) if call.startswith("evaluate"))
    assert "--tasks data/tasks/piqa/manifest.json data/tasks/quiz/manifest.json --output" in call
    done.replace("config/config.yaml", "limit: 5", "limit: 6")
    assert done.planned() == {"evaluate_model": EVERY_STAGE["evaluate_model"]} | REPORT


def test_other_questions_make_the_corpus_again_while_it_must_not_quote_them(done):
    assert done.planned("build_corpus", "--config", "evaluate={questions: null}") == {
        "build_corpus": 1
    }
    done.replace("config/config.yaml", "{name: shared}", "{name: shared, decontaminate: false}")
    done.run("build_corpus")
    assert done.planned("build_corpus", "--config", "evaluate={questions: null}") == {}


def test_documents_are_extracted_file_by_file_and_read_by_the_corpus(checkout):
    files = "[{url: a.jsonl}, {url: b.parquet}]"
    checkout.write("sources.yaml", f"documents: {{collection: web, files: {files}}}")
    for old, new in (("{name: shared}", "{name: shared, sources: [documents]}"), ("world", "null")):
        checkout.replace("config/config.yaml", old, new)
    off = ("--config", "sft={enabled: false}", "dpo={enabled: false}")
    checkout.run("build_corpus", *off)
    *extracted, assembled = checkout.calls
    assert {call.split()[0] for call in extracted} == {"plan", "documents"}
    texts = sorted((checkout.path / "data").rglob("file-*.txt"))
    assert [path.name for path in texts] == ["file-000.txt", "file-001.txt"]
    given = " ".join(str(path.relative_to(checkout.path)) for path in texts)
    assert f"assemble --documents {given} --config" in assembled
    assert checkout.planned("build_corpus", *off) == {}
    checkout.replace("sources.yaml", "a.jsonl", "c.jsonl")
    assert checkout.planned("build_corpus", *off) == {"extract_documents": 1, "build_corpus": 1}


@pytest.mark.parametrize(
    ("target", "stages"),
    [
        (
            "download",
            {
                "fetch_book",
                "extract_fineweb",
                "fetch_instructions",
                "fetch_preferences",
                "fetch_questions",
                "download",
            },
        ),
        (
            "pretrain",
            {
                "fetch_book",
                "clean_book",
                "extract_fineweb",
                "fetch_questions",
                "build_corpus",
                "learn_bpe",
                "tokenize",
                "pretrain",
            },
        ),
        (
            "sft",
            set(EVERY_STAGE)
            - {
                "check_fit",
                "check_gradients",
                "sft_scratch",
                "dpo",
                "evaluate_model",
                "write_report",
                "all",
            },
        ),
        (
            "dpo",
            set(EVERY_STAGE)
            - {"check_fit", "check_gradients", "sft_scratch", "evaluate_model"}
            - {"write_report", "all"},
        ),
        (
            "evaluate",
            set(EVERY_STAGE) - {"check_fit", "check_gradients", "write_report", "all"}
            | {"evaluate"},
        ),
        ("check_gradients", {"check_gradients"}),
    ],
)
def test_a_stage_can_be_named_on_the_command_line(checkout, target, stages):
    assert set(checkout.planned(target)) == stages


def test_stages_that_are_switched_off_are_left_out_and_the_rest_is_wanted(checkout):
    without_dpo = {
        name: count
        for name, count in EVERY_STAGE.items()
        if name not in ("fetch_preferences", "dpo")
    } | {"evaluate_model": 3}
    assert checkout.planned("--config", "dpo={enabled: false}") == without_dpo
    without_sft = {
        name: count
        for name, count in EVERY_STAGE.items()
        if name not in ("fetch_instructions", "sft", "sft_scratch")
    } | {"evaluate_model": 2}
    assert checkout.planned("--config", "sft={enabled: false}") == without_sft
    checkout.run("--config", "sft={enabled: false}")
    assert "--parent=results/trial/pretrain/model" in next(
        call for call in checkout.calls if call.startswith("dpo ")
    )


def test_alignment_starts_from_the_tuned_model(done):
    assert "--parent=results/trial/sft/model" in next(
        call for call in done.calls if call.startswith("dpo ")
    )


def test_tuning_and_alignment_know_what_the_other_one_holds_out(done):
    for stage, option in (("sft", "--preferences"), ("dpo", "--instructions")):
        call = next(call for call in done.calls if call.startswith(f"{stage} "))
        assert f"{option}=data/{option[2:]}/" in call


def test_the_offline_sample_is_written_before_anything_is_fetched(done):
    done.replace(
        "config/config.yaml", "run: trial", "run: trial\nsample: {seed: 1}\ndata_dir: offline"
    )
    assert done.planned() == {
        name: count for name, count in EVERY_STAGE.items() if name != "check_gradients"
    } | {"write_sample": 1}


def test_the_default_configuration_does_not_leak_into_another(checkout):
    checkout.replace("config/config.yaml", "run: trial", "run: trial\nsample: {seed: 1}\nseed: 5")
    checkout.write(
        "other.yaml",
        (checkout.path / "config/config.yaml")
        .read_text()
        .replace("sample: {seed: 1}\nseed: 5", "")
        .replace("trial", "other"),
    )
    assert "write_sample" not in checkout.planned("--configfile", "other.yaml")


def test_the_command_line_overrides_a_file(checkout):
    given = "pretrain={learning_rate: 1e-4, tokens: 2e6}", "seed=9"
    checkout.run("check_gradients", "--config", *given)
    config = read_resolved(checkout.path / "results/trial/configuration.json")
    assert config["seed"] == 9
    assert (config["pretrain"]["learning_rate"], config["pretrain"]["tokens"]) == (1e-4, 2_000_000)


def test_a_stage_that_fails_is_told_and_what_was_done_is_kept(checkout):
    failed = checkout.snakemake("pretrain", failing="tokenize")
    assert failed.returncode != 0
    assert set(checkout.planned("pretrain")) == {"tokenize", "pretrain"}


def test_records_that_do_not_fit_are_told_before_anything_is_trained(checkout):
    failed = checkout.snakemake(failing="fit")
    assert failed.returncode != 0
    stages = {call.split()[0] for call in checkout.calls}
    assert "fit" in stages
    assert not stages & {"pretrain", "sft", "dpo"}


def test_a_mistake_in_the_configuration_stops_before_anything_runs(checkout):
    checkout.replace("config/config.yaml", "sft: {", "sft: {lerning_rate: 1, ")
    refused = checkout.snakemake()
    assert refused.returncode != 0
    # the first line is Snakemake's, about its profile
    assert refused.stderr.splitlines()[1:] == [
        "error  config/config.yaml, line 7: unknown key sft.lerning_rate; "
        "did you mean sft.learning_rate?"
    ]
    assert checkout.calls == []


def test_snakemake_finds_nothing_to_criticise(checkout):
    assert "your workflow is in a good condition" in checkout.run("--lint")


def test_the_graph_of_the_rules_can_be_drawn_and_the_report_written(done):
    assert "flowchart TB" in done.run("--rulegraph", "mermaid-js")
    done.run("--report", "report.html")
    assert (done.path / "report.html").stat().st_size > 100_000
