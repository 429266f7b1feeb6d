# The corpus and the tokens of a run with many web shards, in jobs for groups of them.
#
# REQUIRED INPUTS   the web shards, and all else that build_corpus reads
# OUTPUTS           data/corpora/<name>/groups, data/corpora/<name>/tokens-<vocabulary>-groups:
#                   deleted when the corpus, and the tokens, are there


rule hold_out:
    input:
        texts=lambda wildcards: ancient_if_whole(paths.text_files),
        records=paths.text_records,
        own=paths.own_inputs,
        kept_out=paths.kept_out,
    output:
        step=temp(directory(paths.held_out)),
    log:
        paths.log("hold_out"),
    threads: ALL_CORES
    resources:
        **asked("hold_out"),
    params:
        identity=compared(rule_identity(config, "build_corpus")),
        config=not_compared(paths.configuration),
        folder=not_compared(paths.corpus),
        groups=not_compared(f"--group-files {paths.group_files}"),
        texts=not_compared(paths.text_options),
    message:
        "Choosing the documents that are held out, and reading them"
    shell:
        "python -m nanoeuler assemble --step hold_out {params.groups} --config {params.config:q}"
        " {params.texts:q}"
        " --kept-out {input.kept_out:q} --threads {threads} --output {params.folder:q}"
        " --log {log:q}"


rule compare_group:
    input:
        held_out=paths.held_out,
        pages=lambda wildcards: ancient_if_whole(paths.group_pages(wildcards.group)),
    output:
        step=temp(paths.compared("{group}")),
    log:
        paths.log("compare_group/{group}"),
    threads: ALL_CORES
    resources:
        **asked("compare_group"),
    params:
        identity=compared(rule_identity(config, "build_corpus")),
        config=not_compared(paths.configuration),
        folder=not_compared(paths.corpus),
    message:
        "Comparing the pages of group {wildcards.group} with held-out text"
    shell:
        "python -m nanoeuler assemble --step compare --group {wildcards.group}"
        " --config {params.config:q} --fineweb {input.pages:q} --threads {threads}"
        " --output {params.folder:q} --log {log:q}"


rule choose_documents:
    input:
        own=paths.own_inputs,
        kept_out=paths.kept_out,
        held_out=paths.held_out,
        compared=[paths.compared(group) for group in paths.groups],
    output:
        step=temp(directory(paths.chosen)),
    log:
        paths.log("choose_documents"),
    threads: ALL_CORES
    resources:
        **asked("choose_documents"),
    params:
        identity=compared(rule_identity(config, "build_corpus")),
        config=not_compared(paths.configuration),
        folder=not_compared(paths.corpus),
        groups=not_compared(f"--group-files {paths.group_files}"),
        texts=not_compared(paths.text_options),
    message:
        "Choosing the documents to learn from, without repetitions"
    shell:
        "python -m nanoeuler assemble --step choose {params.groups} --config {params.config:q}"
        " {params.texts:q}"
        " --kept-out {input.kept_out:q} --threads {threads} --output {params.folder:q}"
        " --log {log:q}"


rule write_group:
    input:
        held_out=paths.held_out,
        chosen=paths.chosen,
        pages=lambda wildcards: ancient_if_whole(paths.group_pages(wildcards.group)),
    output:
        step=temp(directory(paths.written("{group}"))),
    log:
        paths.log("write_group/{group}"),
    threads: ALL_CORES
    resources:
        **asked("write_group"),
    params:
        identity=compared(rule_identity(config, "build_corpus")),
        config=not_compared(paths.configuration),
        folder=not_compared(paths.corpus),
    message:
        "Writing the pages of group {wildcards.group}"
    shell:
        "python -m nanoeuler assemble --step write --group {wildcards.group}"
        " --config {params.config:q} --fineweb {input.pages:q} --threads {threads}"
        " --output {params.folder:q} --log {log:q}"


rule tokenize_group:
    input:
        corpus=paths.corpus_manifest,
        tokenizer=paths.tokenizer,
    output:
        folder=temp(directory(paths.group_tokens("{group}"))),
    log:
        paths.log("tokenize_group/{group}"),
    threads: ALL_CORES
    resources:
        **asked("tokenize_group"),
    params:
        identity=compared(rule_identity(config, "tokenize")),
        config=not_compared(paths.configuration),
    message:
        "Turning group {wildcards.group} of the corpus into token shards"
    shell:
        "python -m nanoeuler tokenize --group {wildcards.group} --config {params.config:q}"
        " --corpus {input.corpus:q} --tokenizer {input.tokenizer:q} --output {output.folder:q}"
        " --threads {threads} --log {log:q}"
