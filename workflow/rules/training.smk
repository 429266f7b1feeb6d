# From tokens to models.
#
# The checkpoints of a stage are in results/<run>/<stage>/checkpoints. They are not an output of the
# rule, because Snakemake deletes the outputs of a job that failed or was stopped. The model folder
# is one, and is written last.
#
# REQUIRED INPUTS   the token manifest and the tokenizer; for sft and dpo also the instructions or
#                   preferences, and the model of the stage before
# OUTPUTS           results/<run>/<stage>/model/{model.safetensors,config.json,tokenizer.json}
#                   results/<run>/gradients.json and fit.json


# Before any training: priority lets it start ahead of rules that are ready, too.
rule check_fit:
    input:
        tokenizer=ancient(paths.tokenizer),
        instructions=paths.instructions_manifest,
        preferences=paths.preferences_manifest,
    output:
        paths.fit,
    log:
        paths.log("check_fit"),
    priority: 1
    threads: 1
    resources:
        mem_mb=2000,
    params:
        identity=lambda wildcards: stage_identity(config, "check_fit"),
        config=lambda wildcards, output: stage_config(config, "check_fit"),
        records=lambda wildcards, input: [
            *option("--instructions", input.instructions),
            *option("--preferences", input.preferences),
        ],
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
        **cluster_resources(config, cluster, JOB_GPUS),
        gpu=JOB_GPUS,
        mem_mb=training_megabytes(config),
    params:
        identity=lambda wildcards: stage_identity(config, "check_gradients"),
        code=lambda wildcards: code_fingerprint(*CHECKED_CODE),
        config=lambda wildcards, output: stage_config(config, "check_gradients"),
        device=lambda wildcards, resources: f"--device {config['device']} --gpus {resources.gpu}",
    message:
        "Comparing every gradient with numerical derivatives, and the engine with the specification"
    shell:
        "python -m nanoeuler check --config {params.config:q} --output {output.table:q}"
        " {params.device} --log {log:q}"


rule pretrain:
    input:
        tokens=paths.tokens,
        tokenizer=ancient(paths.tokenizer),
    output:
        **paths.model("pretrain"),
    log:
        f"{paths.stage('pretrain')}/train.log",
    threads: TRAINING_THREADS
    resources:
        **cluster_resources(config, cluster, TRAINING_GPUS, TRAINING_NODES),
        gpu=TRAINING_NODES * TRAINING_GPUS,
        mem_mb=training_megabytes(config, TRAINING_GPUS),
    params:
        identity=lambda wildcards: stage_identity(config, "pretrain"),
        config=lambda wildcards, output: stage_config(config, "pretrain"),
        amount=lambda wildcards, output: config["pretrain"]["tokens"],
        folder=lambda wildcards, output: paths.stage("pretrain"),
        srun=lambda wildcards, resources: srun(resources, running.on_cluster),
        device=lambda wildcards, resources: (
            f"--device {config['device']} --gpus {task_gpus(resources, running.on_cluster)}"
        ),
    message:
        "Pretraining on {params.amount} tokens"
    shell:
        "{params.srun}python -m nanoeuler pretrain --config {params.config:q}"
        " --tokens {input.tokens:q} --tokenizer {input.tokenizer:q} --output {params.folder:q}"
        " {params.device} --log {log:q}"


rule sft:
    input:
        parent=paths.sft_parent,
        tokenizer=ancient(paths.tokenizer),
        instructions=f"{paths.instructions}/manifest.json",
        preferences=paths.preferences_manifest,
    output:
        **paths.model("sft"),
    log:
        f"{paths.stage('sft')}/train.log",
    threads: TRAINING_THREADS
    resources:
        **cluster_resources(config, cluster, TRAINING_GPUS, TRAINING_NODES),
        gpu=TRAINING_NODES * TRAINING_GPUS,
        mem_mb=training_megabytes(config, TRAINING_GPUS),
    params:
        identity=lambda wildcards: stage_identity(config, "sft"),
        config=lambda wildcards, output: stage_config(config, "sft"),
        parent=lambda wildcards: config["sft"]["init_from"] or paths.model_folder("pretrain"),
        folder=lambda wildcards, output: paths.stage("sft"),
        apart=lambda wildcards, input: option("--preferences", input.preferences),
        srun=lambda wildcards, resources: srun(resources, running.on_cluster),
        device=lambda wildcards, resources: (
            f"--device {config['device']} --gpus {task_gpus(resources, running.on_cluster)}"
        ),
    message:
        "Fine-tuning the pretrained model on instructions"
    shell:
        "{params.srun}python -m nanoeuler sft --config {params.config:q}"
        " --instructions {input.instructions:q} {params.apart:q}"
        " --tokenizer {input.tokenizer:q} --parent={params.parent:q} --output {params.folder:q}"
        " {params.device} --log {log:q}"


rule sft_scratch:
    input:
        instructions=f"{paths.instructions}/manifest.json",
        preferences=paths.preferences_manifest,
        tokenizer=paths.tokenizer,
    output:
        **paths.model("sft_scratch"),
    log:
        f"{paths.stage('sft_scratch')}/train.log",
    threads: TRAINING_THREADS
    resources:
        **cluster_resources(config, cluster, TRAINING_GPUS, TRAINING_NODES),
        gpu=TRAINING_NODES * TRAINING_GPUS,
        mem_mb=training_megabytes(config, TRAINING_GPUS),
    params:
        identity=lambda wildcards: stage_identity(config, "sft"),
        config=lambda wildcards, output: stage_config(config, "sft"),
        folder=lambda wildcards, output: paths.stage("sft_scratch"),
        apart=lambda wildcards, input: option("--preferences", input.preferences),
        srun=lambda wildcards, resources: srun(resources, running.on_cluster),
        device=lambda wildcards, resources: (
            f"--device {config['device']} --gpus {task_gpus(resources, running.on_cluster)}"
        ),
    message:
        "Fine-tuning random weights, to show what pretraining is worth"
    shell:
        "{params.srun}python -m nanoeuler sft --config {params.config:q}"
        " --instructions {input.instructions:q} {params.apart:q}"
        " --tokenizer {input.tokenizer:q} --output {params.folder:q} {params.device} --log {log:q}"


rule dpo:
    input:
        parent=paths.dpo_parent_weights,
        tokenizer=ancient(paths.tokenizer),
        preferences=f"{paths.preferences}/manifest.json",
        instructions=paths.instructions_manifest,
    output:
        **paths.model("dpo"),
    log:
        f"{paths.stage('dpo')}/train.log",
    threads: TRAINING_THREADS
    resources:
        **cluster_resources(config, cluster, TRAINING_GPUS, TRAINING_NODES),
        gpu=TRAINING_NODES * TRAINING_GPUS,
        mem_mb=training_megabytes(config, TRAINING_GPUS),
    params:
        identity=lambda wildcards: stage_identity(config, "dpo"),
        config=lambda wildcards, output: stage_config(config, "dpo"),
        parent=lambda wildcards: paths.dpo_parent,
        folder=lambda wildcards, output: paths.stage("dpo"),
        apart=lambda wildcards, input: option("--instructions", input.instructions),
        srun=lambda wildcards, resources: srun(resources, running.on_cluster),
        device=lambda wildcards, resources: (
            f"--device {config['device']} --gpus {task_gpus(resources, running.on_cluster)}"
        ),
    message:
        "Aligning the model with preferences"
    shell:
        "{params.srun}python -m nanoeuler dpo --config {params.config:q}"
        " --preferences {input.preferences:q} {params.apart:q}"
        " --tokenizer {input.tokenizer:q} --parent={params.parent:q} --output {params.folder:q}"
        " {params.device} --log {log:q}"
