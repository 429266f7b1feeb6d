"""A corpus of many web shards is built by jobs for groups of them."""

from stub_checkout import EVERY_STAGE, Checkout

ADDRESS = "hf://datasets/HuggingFaceFW/fineweb-edu/data/CC-MAIN-2013-20/train-{:05d}.parquet"
LONGEST_COMMAND = 131_072  # bytes: one argument of the shell, Linux' MAX_ARG_STRLEN
FEW = "shards: [{url: https://example.org/000.parquet}, {url: https://example.org/001.parquet}]"
BY_GROUP = ("compare_group", "write_group", "tokenize_group")


def take(checkout: Checkout, shards: int) -> None:
    """Let the run take web pages from `shards` shards, up to 1 GB each."""
    named = (f"{{url: {ADDRESS.format(n)}, sha256: '{n:064x}'}}" for n in range(shards))
    checkout.replace("sources.yaml", FEW, f"shards: [{', '.join(named)}]")
    several = f"{{name: shared, fineweb: {{shards: {shards}}}}}"
    checkout.replace("config/config.yaml", "{name: shared}", several)


def test_18_gb_are_cleaned_and_encoded_in_5_groups(checkout):
    take(checkout, 18)
    groups = dict.fromkeys(BY_GROUP, 5) | {"hold_out": 1, "choose_documents": 1}
    assert checkout.planned() == EVERY_STAGE | {"extract_fineweb": 18} | groups
    tokens = "data/corpora/shared/tokens-512/manifest.json"
    checkout.run(tokens)
    compared = [call for call in checkout.calls if "--step compare --group 004" in call]
    assert [call.count("shard-") for call in compared] == [2]
    assert "Nothing to be done" in checkout.run(tokens)
    corpus = checkout.path / "data/corpora/shared"
    assert not any((corpus / "groups").glob("*"))
    assert not any(corpus.glob("tokens-*-groups/*"))


def test_the_commands_of_a_thousand_shards_fit_the_shell(checkout):
    take(checkout, 1_000)
    printed = checkout.run("-n", "--printshellcmds").splitlines()
    commands = [line for line in printed if "python -m nanoeuler" in line]
    assert sum("nanoeuler fineweb" in command for command in commands) == 1_000
    assert sum("--step compare" in command for command in commands) == 100
    assert max(len(command.encode()) for command in commands) < LONGEST_COMMAND
