# From tokens to models.
#
# The checkpoints of a stage are in results/<run>/<stage>/checkpoints. They are not an output of the
# rule, because Snakemake deletes the outputs of a job that failed or was stopped. The model folder
# is one, and is written last.
#
# REQUIRED INPUTS   the token manifest and the tokenizer; for stages that learn from records also
#                   those, and the model of the stage before
# OUTPUTS           results/<run>/<stage>/model/{model.safetensors,config.json,tokenizer.json}
#                   results/<run>/gradients.json and fit.json


# Before any training: priority lets it start ahead of rules that are ready, too.
rule check_fit:
    input:
        tokenizer=lambda wildcards: ancient_if_whole([paths.tokenizer]),
        records=list(paths.learned_records.values()),
    output:
        paths.fit,
    log:
        paths.log("check_fit"),
    priority: 1
    threads: 1
    resources:
        mem_mb=2000,
    params:
        identity=compared(rule_identity(config, "check_fit")),
        config=not_compared(paths.configuration),
        records=not_compared(options(paths.learned_records)),
    message:
        "Counting the records that fit into the context"
    shell:
        "python -m nanoeuler fit --config {params.config:q} --tokenizer {input.tokenizer:q}"
        " {params.records:q} --output {output:q} --log {log:q}"


rule check_gradients:
    output:
        table=report(paths.gradients, category="Checks", caption="../report/gradients.rst"),
    log:
        paths.log("check_gradients"),
    threads: MODEL_THREADS
    resources:
        **asked("check_gradients"),
    params:
        identity=compared(rule_identity(config, "check_gradients")),
        code=compared(lambda wildcards: code_fingerprint(*CHECKED_CODE)),
        config=not_compared(paths.configuration),
        device=lambda wildcards, resources: f"--device {config['device']} --gpus {resources.gpu}",
    message:
        "Comparing every gradient with numerical derivatives, and the engine with the specification"
    shell:
        "python -m nanoeuler check --config {params.config:q} --output {output.table:q}"
        " {params.device} --log {log:q}"


# A rule for each stage of training: pretrain, sft, …
for stage in STAGES:

    rule:
        name:
            stage.name
        input:
            paths.parent_weights(stage),
            list(paths.material(stage).values()),
            tokenizer=paths.tokenizer,
        output:
            **paths.model(stage.name),
        log:
            f"{paths.stage(stage.name)}/train.log",
        threads: TRAINING_THREADS
        resources:
            **asked(stage.name),
        params:
            identity=compared(rule_identity(config, stage.section)),
            parent=compared(options(paths.parent(stage))),
            config=not_compared(paths.configuration),
            command=not_compared(stage.section),
            material=not_compared(options(paths.material(stage))),
            folder=not_compared(paths.stage(stage.name)),
            srun=lambda wildcards, resources: srun(resources, running.on_cluster),
            device=lambda wildcards, resources: (
                f"--device {config['device']} --gpus {task_gpus(resources, running.on_cluster)}"
            ),
        message:
            stage.message.format_map(config[stage.section])
        shell:
            "{params.srun}python -m nanoeuler {params.command} --config {params.config:q}"
            " {params.material:q} --tokenizer {input.tokenizer:q} {params.parent:q}"
            " --output {params.folder:q} {params.device} --log {log:q}"
