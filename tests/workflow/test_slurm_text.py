"""Text that many jobs of a real Slurm clean and encode has the bytes of one job's."""

import json
import subprocess
import sys

import pytest
from stub_checkout import copy_checkout

from nanoeuler.config import load
from nanoeuler.tokenizer.shards import TokenStore
from tests.corpus.web_pages import make_parquet
from tests.slurm_cluster import PROFILE, slurm_cluster
from tests.waiting import CEILING

pytestmark = pytest.mark.slow
SHARDS = 5
CONFIG = f"""
run: text
sources: sources.yaml
corpus:
  name: web
  sources: [fineweb]
  fineweb: {{shards: {SHARDS}, max_bytes_per_shard: 4000000000}}
  deduplicate: {{web: near}}
tokenizer: {{vocab_size: 300}}
model: {{preset: small}}
pretrain: {{tokens: 1000000, batch_tokens: 4096, learning_rate: 3.0e-3}}
slurm: {{cpus: 1}}
"""
PAGES = """
    select string_agg(md5(concat(seed, '-', n)), ' ' order by n)
           || if(row % 9 = 1, ' {shard}', '') as text,
           '<urn:uuid:' || seed || '>' as id, 'CC-MAIN' as dump,
           'https://example.org/' || seed as url, 's3://x' as file_path,
           'en' as language, 0.9 as language_score, 100 as token_count, 3.5 as score,
           4::bigint as int_score
    from (select row, if(row % 9 < 2, row, {shard} * 1000 + row) as seed
          from range(60) r(row)), range(30) t(n)
    group by row, seed order by row"""
"""Every ninth page is in all shards, and the one behind it nearly the same in all."""


def test_jobs_for_groups_write_the_bytes_of_one_job(tmp_path):
    pytest.importorskip(
        "snakemake_executor_plugin_slurm", reason="the slurm extra is not installed"
    )
    checkout = copy_checkout(tmp_path / "checkout")
    shards = [
        make_parquet(checkout.path / f"{shard}.parquet", select=PAGES.format(shard=shard))
        for shard in range(SHARDS)
    ]
    urls = [{"url": str(path)} for path in shards]
    pages = {"collection": "web", "licence": "MIT", "shards": urls}
    checkout.write("sources.yaml", json.dumps({"fineweb": pages}))
    checkout.write("text.yaml", CONFIG)
    tokens = "data/corpora/web/tokens-300/manifest.json"
    with slurm_cluster() as cluster:
        said = checkout.run(tokens, *PROFILE, "--configfile", "text.yaml", environment=cluster)
    for rule, jobs in {"hold_out": 1, "compare_group": 5, "choose_documents": 1}.items():
        assert said.count(f"slurm_logs/rule_{rule}/") == jobs, rule
    for rule, jobs in {"write_group": 5, "build_corpus": 1, "tokenize_group": 5}.items():
        assert said.count(f"slurm_logs/rule_{rule}/") == jobs, rule

    config = json.dumps(load(str(checkout.path / "text.yaml")))

    def nanoeuler(*command: object) -> None:
        words = [sys.executable, "-m", "nanoeuler", *map(str, command), "--config", config]
        subprocess.run(words, cwd=checkout.path, check=True, timeout=CEILING)

    extracted = sorted(checkout.path.glob("data/fineweb/web/*/shard-*.txt"))
    nanoeuler("assemble", "--fineweb", *extracted, "--output", "alone")
    corpus = ("--corpus", "alone/manifest.json")
    nanoeuler("bpe", *corpus, "--output", "tokenizer.json")
    nanoeuler("tokenize", *corpus, "--tokenizer", "tokenizer.json", "--output", "tokens")
    for split in ("train", "validation"):
        groups = sorted(checkout.path.glob(f"data/corpora/web/{split}/fineweb-*.txt"))
        alone = (checkout.path / f"alone/{split}/fineweb.txt").read_bytes()
        assert b"".join(group.read_bytes() for group in groups) == alone
        stores = [
            TokenStore.open(checkout.path / manifest).tokens(split)[:].tolist()
            for manifest in (tokens, "tokens/manifest.json")
        ]
        assert stores[0] == stores[1]
    manifest = json.loads((checkout.path / "data/corpora/web/manifest.json").read_text())
    dropped = manifest["sources"]["fineweb"]["dropped"]
    assert all(dropped[f"{kind} duplicates"]["documents"] for kind in ("exact", "near"))
    learned = checkout.path / "data/corpora/web/tokenizer-300/tokenizer.json"
    assert learned.read_bytes() == (checkout.path / "tokenizer.json").read_bytes()
