# Trials of an experiment: pretraining by configurations that `nanoeuler experiment` has written.
#
# A trial hands on its measurements alone. Weights and checkpoints, which of a sweep would fill the
# disk, are deleted at its end.
#
# REQUIRED INPUTS   the token manifest, the tokenizer; results/<run>/<trial>/configuration.json
# OUTPUTS           results/<run>/<trial>/pretrain/metrics.jsonl, and last <trial>/tokens.json
#                   results/<run>/<trial>/speed.json


rule trial:
    input:
        tokens=paths.tokens,
        tokenizer=paths.tokenizer,
    output:
        f"{paths.results}/{{trial}}/tokens.json",
    log:
        f"{paths.results}/{{trial}}/pretrain/train.log",
    threads: TRAINING_THREADS
    resources:
        **cluster_resources(config, cluster, TRAINING_GPUS, TRAINING_NODES),
        gpu=TRAINING_NODES * TRAINING_GPUS,
        mem_mb=lambda wildcards: training_megabytes(
            load(f"{paths.results}/{wildcards.trial}/configuration.json"), TRAINING_GPUS
        ),
    params:
        folder=not_compared(lambda wildcards: f"{paths.results}/{wildcards.trial}"),
        srun=lambda wildcards, resources: srun(resources, running.on_cluster),
        device=lambda wildcards, resources: (
            f"--device {config['device']} --gpus {task_gpus(resources, running.on_cluster)}"
        ),
    shell:
        "echo training {wildcards.trial:q} >&2;"
        " {params.srun}python -m nanoeuler pretrain --config {params.folder:q}/configuration.json"
        " --tokens {input.tokens:q} --tokenizer {input.tokenizer:q}"
        " --output {params.folder:q}/pretrain {params.device} --log {log:q} 2> /dev/null"
        " && rm -r {params.folder:q}/pretrain/checkpoints {params.folder:q}/pretrain/model"
        " && cp {input.tokens:q} {output:q}"


rule measure_speed:
    input:
        tokens=paths.tokens,
    output:
        f"{paths.results}/{{trial}}/speed.json",
    log:
        f"{paths.results}/{{trial}}/speed.log",
    threads: TRAINING_THREADS
    resources:
        **cluster_resources(config, cluster, TRAINING_GPUS),
        gpu=TRAINING_GPUS,
        mem_mb=lambda wildcards: training_megabytes(
            load(f"{paths.results}/{wildcards.trial}/configuration.json"), TRAINING_GPUS
        ),
    params:
        folder=not_compared(lambda wildcards: f"{paths.results}/{wildcards.trial}"),
        device=lambda wildcards, resources: f"--device {config['device']} --gpus {resources.gpu}",
    shell:
        "echo timing {wildcards.trial:q} >&2;"
        " python -m nanoeuler plan --config {params.folder:q}/configuration.json --stages pretrain"
        " {params.device} --json --log {log:q} > {output:q} 2> /dev/null"
