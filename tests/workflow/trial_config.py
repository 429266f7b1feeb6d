"""A small configuration and its sources file, which tests of configurations change."""

SOURCES = """
gutenberg: {collection: classics, mirror: "{data_dir}/mirror", licence: Public domain, books: [
  {id: 1342, title: Pride and Prejudice}, {id: 84}]}
fineweb: {collection: web, shards: [{url: "https://example.org/000.parquet"}]}
instructions: {alpaca: {url: alpaca.json}}
documents: {collection: web, files: [{url: a.jsonl.zst}, {url: b.parquet}]}
questions: {world: {url: questions.jsonl}}
"""
CONFIG = """
run: trial
sources: {sources}
model: {{preset: small}}
pretrain:
  tokens: 1000000
  batch_tokens: 4096
  learning_rate: 3.0e-3
"""
