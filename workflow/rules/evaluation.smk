# From models to scores and a report.
#
# REQUIRED INPUTS   the model of every stage, the token manifest and its index, held-out questions
#                   and tasks
# OUTPUTS           results/<run>/evaluation/<stage>.json, beside it <stage>.items.jsonl
#                   results/<run>/{report.html,metrics.json,evaluation.md,README.md}


rule evaluate_model:
    input:
        unpack(lambda wildcards: paths.model(wildcards.stage)),
        tokens=paths.tokens,
        questions=paths.questions,
        instructions=[*filter(None, [paths.learned_records.get("instructions")])],
        index=paths.wanted_index,
        tasks=paths.tasks,
    output:
        scores=report(
            paths.evaluation("{stage}"),
            category="Scores",
            labels={"stage": "{stage}"},
            caption="../report/evaluation.rst",
        ),
        per_item=paths.evaluated_items("{stage}"),
    log:
        paths.log("evaluate_model/{stage}"),
    threads: MODEL_THREADS
    resources:
        **asked("evaluate_model"),
    params:
        identity=compared(rule_identity(config, "evaluate_model")),
        config=not_compared(paths.configuration),
        model=not_compared(lambda wildcards: paths.model_folder(wildcards.stage)),
        files=lambda wildcards, input: [
            *option("--questions", input.questions),
            *option("--instructions", input.instructions),
            *option("--index", input.index),
            *option("--tasks", input.tasks),
        ],
        device=lambda wildcards, resources: f"--device {config['device']} --gpus {resources.gpu}",
    message:
        "Evaluating the model of {wildcards.stage}"
    shell:
        "python -m nanoeuler evaluate --config {params.config:q} --model {params.model:q}"
        " --tokens {input.tokens:q} {params.files:q} --output {output.scores:q}"
        " --items {output.per_item:q} {params.device} --log {log:q}"


rule evaluate:
    input:
        [paths.evaluation(stage) for stage in paths.stages],


rule write_report:
    input:
        evaluations=rules.evaluate.input,
        gradients=paths.gradients,
        corpus=paths.corpus_manifest,
        tokens=paths.tokens,
        instructions=[*filter(None, [paths.learned_records.get("instructions")])],
    output:
        report=report(paths.report, category="Run", caption="../report/run.rst"),
        metrics=report(paths.metrics, category="Run", caption="../report/metrics.rst"),
        table=report(paths.comparison, category="Run", caption="../report/comparison.rst"),
        card=report(paths.card, category="Run", caption="../report/card.rst"),
    log:
        paths.log("write_report"),
    threads: 1
    resources:
        **asked("write_report"),
    params:
        identity=compared(rule_identity(config, "write_report")),
        name=not_compared(config["run"]),
        run=not_compared(paths.results),
    message:
        "Writing the report of run {params.name}"
    shell:
        "python -m nanoeuler report {params.run:q}"
        " --output {output.report:q} --metrics {output.metrics:q} --table {output.table:q}"
        " --card {output.card:q} --log {log:q}"
