# From addresses to a corpus.
#
# REQUIRED INPUTS   the addresses in the sources file; files of your own named in corpus.sources
# OUTPUTS           data/{gutenberg,fineweb,instructions,preferences}: shared by every run
#                   data/corpora/<name>/manifest.json, beside it text for training and validation


rule write_sample:
    output:
        manifest=f"{paths.sample}/manifest.json",
    log:
        paths.log("write_sample"),
    threads: 1
    resources:
        mem_mb=1000,
    params:
        identity=compared(rule_identity(config, "write_sample")),
        config=not_compared(paths.configuration),
        folder=not_compared(paths.sample),
    message:
        "Writing the invented world that the offline demo learns from"
    shell:
        "python -m nanoeuler sample --config {params.config:q} --output {params.folder:q}"
        " --log {log:q}"


rule fetch_book:
    input:
        before=paths.before_download,
    output:
        book=paths.raw_book("{id}"),
    log:
        paths.log("fetch_book/{id}"),
    threads: 1
    resources:
        mem_mb=250,
        mirror_connections=1,
    params:
        identity=compared(rule_identity(config, "fetch_book")),
        config=not_compared(paths.configuration),
    message:
        "Fetching book {wildcards.id} from the Gutenberg mirror"
    shell:
        "python -m nanoeuler gutenberg fetch --config {params.config:q} --id {wildcards.id}"
        " --output {output.book:q} --log {log:q}"


rule clean_book:
    input:
        # Snakemake ends after the job that repeats a half-made file if this is `ancient`
        book=lambda wildcards: (
            rules.fetch_book.output.book
            if is_incomplete(paths.raw_book(wildcards.id))
            else ancient(rules.fetch_book.output.book)
        ),
    output:
        book=paths.clean_book("{id}"),
        record=paths.book_record("{id}"),
    log:
        paths.log("clean_book/{id}"),
    threads: 1
    resources:
        mem_mb=250,
    params:
        identity=compared(rule_identity(config, "clean_book")),
        about=compared(lambda wildcards: paths.book(wildcards.id)),
    message:
        "Cutting book {wildcards.id} out of its header, credits and licence"
    shell:
        "python -m nanoeuler gutenberg clean --id {wildcards.id} --input {input.book:q}"
        " --output {output.book:q} --record {output.record:q} --title={params.about[title]:q}"
        " --author={params.about[author]:q} --log {log:q}"


rule extract_fineweb:
    input:
        before=paths.before_download,
    output:
        pages=paths.web_shard("{shard}"),
        index=paths.web_index("{shard}"),
        origins=paths.web_origins("{shard}"),
        record=paths.web_record("{shard}"),
    log:
        paths.log("extract_fineweb/{shard}"),
    threads: 1
    resources:
        mem_mb=2000,
    params:
        identity=compared(rule_identity(config, "extract_fineweb")),
        config=not_compared(paths.configuration),
        source=compared(lambda wildcards: canonical_json(paths.web_source(wildcards.shard))),
    message:
        "Extracting the pages of web shard {wildcards.shard} that pass the filters"
    shell:
        "python -m nanoeuler fineweb --config {params.config:q} --shard {wildcards.shard}"
        " --output {output.pages:q} --record {output.record:q} --log {log:q}"


rule fetch_instructions:
    input:
        before=paths.before_download,
    output:
        manifest=paths.records_manifest("instructions"),
    log:
        paths.log("fetch_instructions"),
    threads: 1
    resources:
        mem_mb=1000,
    params:
        identity=compared(rule_identity(config, "fetch_instructions")),
        config=not_compared(paths.configuration),
        name=not_compared(config["sft"]["instructions"]),
        folder=not_compared(paths.records_folder("instructions")),
    message:
        "Fetching and checking the instructions {params.name}"
    shell:
        "python -m nanoeuler instructions --config {params.config:q} --name={params.name:q}"
        " --output {params.folder:q} --log {log:q}"


rule fetch_preferences:
    input:
        before=paths.before_download,
    output:
        manifest=paths.records_manifest("preferences"),
    log:
        paths.log("fetch_preferences"),
    threads: 1
    resources:
        mem_mb=2000,
    params:
        identity=compared(rule_identity(config, "fetch_preferences")),
        config=not_compared(paths.configuration),
        name=not_compared(config["dpo"]["preferences"]),
        folder=not_compared(paths.records_folder("preferences")),
    message:
        "Fetching and checking the preferences {params.name}"
    shell:
        "python -m nanoeuler preferences --config {params.config:q} --name={params.name:q}"
        " --output {params.folder:q} --log {log:q}"


rule build_corpus:
    input:
        books=ancient(paths.in_one_job(paths.clean_books)),
        book_records=paths.in_one_job(paths.book_records),
        pages=ancient(paths.in_one_job(paths.pages)),
        page_records=paths.in_one_job(paths.page_records),
        own=paths.in_one_job(paths.own_inputs),
        kept_out=paths.kept_out,
        steps=paths.last_steps,
    output:
        manifest=paths.corpus_manifest,
    log:
        paths.log("build_corpus"),
    threads: ALL_CORES
    resources:
        **cluster_resources(config, cluster),
        mem_mb=2000,
    params:
        identity=compared(rule_identity(config, "build_corpus")),
        config=not_compared(paths.configuration),
        folder=not_compared(paths.corpus),
        step=not_compared(paths.finishing),
    message:
        "Splitting the documents into text for training and validation, without repetitions"
    shell:
        "python -m nanoeuler assemble {params.step} --config {params.config:q}"
        " --books {input.books:q} --fineweb {input.pages:q}"
        " --kept-out {input.kept_out:q} --threads {threads} --output {params.folder:q}"
        " --log {log:q}"
