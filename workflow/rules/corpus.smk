# From addresses to a corpus.
#
# REQUIRED INPUTS   the addresses in the sources file; files of your own named in corpus.sources
# OUTPUTS           data/<source>: shared by every run
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


# A rule for each step of the sources that nanoeuler/corpus/sources declares. They need the network,
# or do little work: on a cluster they run on the login node, unless its nodes have network.
for step in STEPS.values():

    rule:
        name:
            step.rule
        input:
            **once_whole(step.inputs(config, "{item}")),
            before=paths.before(step),
        output:
            **step.outputs(config, "{item}"),
        log:
            paths.log(f"{step.rule}/{{item}}"),
        wildcard_constraints:
            item=step.pattern,
        localrule: jobs.is_local(config, step.rule)
        threads: 1
        resources:
            **asked(step.rule),
            mirror_connections=step.connections,
        params:
            identity=compared(rule_identity(config, step.rule)),
            entry=compared(
                lambda wildcards, step=step: canonical_json(step.entry(config, wildcards.item))
            ),
            arguments=not_compared(
                lambda wildcards, step=step: step.arguments(
                    config, wildcards.item, paths.configuration
                )
            ),
        message:
            step.message
        shell:
            "python -m nanoeuler {params.arguments:q} --log {log:q}"


rule build_corpus:
    input:
        texts=lambda wildcards: ancient_if_whole(paths.in_one_job(paths.text_files)),
        records=paths.in_one_job(paths.text_records),
        own=paths.in_one_job(paths.own_inputs),
        kept_out=paths.kept_out,
        steps=paths.last_steps,
    output:
        manifest=paths.corpus_manifest,
    log:
        paths.log("build_corpus"),
    threads: ALL_CORES
    resources:
        **asked("build_corpus"),
    params:
        identity=compared(rule_identity(config, "build_corpus")),
        config=not_compared(paths.configuration),
        folder=not_compared(paths.corpus),
        texts=not_compared(paths.finishing or paths.text_options),
    message:
        "Splitting the documents into text for training and validation, without repetitions"
    shell:
        "python -m nanoeuler assemble {params.texts:q} --config {params.config:q}"
        " --kept-out {input.kept_out:q} --threads {threads} --output {params.folder:q}"
        " --log {log:q}"
