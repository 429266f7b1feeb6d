# From text to tokens.
#
# REQUIRED INPUTS   data/corpora/<name>/manifest.json
# OUTPUTS           data/corpora/<name>/tokenizer-<vocabulary>/tokenizer.json
#                   data/corpora/<name>/tokens-<vocabulary>/manifest.json, beside it the shards
#                   data/corpora/<name>/index-<vocabulary>/manifest.json, beside it suffix arrays,
#                   if the configuration asks for them (`index: true`)


rule learn_bpe:
    input:
        corpus=rules.build_corpus.output.manifest,
    output:
        tokenizer=paths.tokenizer,
    log:
        paths.log("learn_bpe"),
    threads: ALL_CORES
    resources:
        **asked("learn_bpe"),
    params:
        identity=compared(rule_identity(config, "learn_bpe")),
        config=not_compared(paths.configuration),
        entries=not_compared(config["tokenizer"]["vocab_size"]),
    message:
        "Learning a byte-level BPE of {params.entries} entries"
    shell:
        "python -m nanoeuler bpe --config {params.config:q} --corpus {input.corpus:q}"
        " --output {output.tokenizer:q} --threads {threads} --log {log:q}"


rule tokenize:
    input:
        corpus=rules.build_corpus.output.manifest,
        tokenizer=rules.learn_bpe.output.tokenizer,
        groups=[paths.group_tokens(group) for group in paths.groups],
    output:
        manifest=paths.tokens,
    log:
        paths.log("tokenize"),
    threads: ALL_CORES
    resources:
        **asked("tokenize"),
    params:
        identity=compared(rule_identity(config, "tokenize")),
        config=not_compared(paths.configuration),
        folder=subpath(output.manifest, parent=True),
        groups=lambda wildcards, input: option("--groups", input.groups),
    message:
        "Turning the corpus into token shards"
    shell:
        "python -m nanoeuler tokenize --config {params.config:q} --corpus {input.corpus:q}"
        " --tokenizer {input.tokenizer:q} {params.groups:q} --output {params.folder:q}"
        " --threads {threads} --log {log:q}"


rule index:
    input:
        tokens=rules.tokenize.output.manifest,
        tokenizer=rules.learn_bpe.output.tokenizer,
    output:
        manifest=paths.index,
    log:
        paths.log("index"),
    threads: ALL_CORES
    resources:
        **asked("index"),
    params:
        identity=compared(rule_identity(config, "index")),
        folder=subpath(output.manifest, parent=True),
    message:
        "Indexing the tokens, so that texts can be found in them"
    shell:
        "python -m nanoeuler index --tokens {input.tokens:q} --tokenizer {input.tokenizer:q}"
        " --output {params.folder:q} --threads {threads} --log {log:q}"
