# The whole workflow: from raw text to a model that chats.
#
#   snakemake                                   the offline demo (config/config.yaml), on all cores
#   snakemake --configfile config/medium.yaml   another run; of several files, later ones win
#   snakemake pretrain                          one stage and what it needs; also: sft, dpo,
#                                               evaluate, download
#   snakemake -n                                only say what would be done, and why
#
# Each rule calls one subcommand of nanoeuler, which can be run by hand just as the rule runs it. A
# rule runs again when its params.identity differs from last time. Its other params are functions of
# output, input or resources. Snakemake does not compare those, because it can derive them. An
# interval, a device or a mirror may therefore change freely.
import gc
import os
import sys

sys.path.insert(0, workflow.basedir)
from nanoeuler.config import start
from nanoeuler.config.cluster import ask_cluster
from nanoeuler.config.endings import end_in_sentences
from nanoeuler.config.machine import (
    ALL_CORES,
    TEXT_MEGABYTES,
    cleaning_megabytes,
    cluster_resources,
    job_environment,
    job_gpus,
    limits,
    model_threads,
    training_gpus,
    training_megabytes,
)
from nanoeuler.config.paths import Paths, option
from nanoeuler.config.slurm_executor import adapt_slurm_executor
from nanoeuler.config.stages import (
    CHECKED_CODE,
    code_fingerprint,
    stage_config,
    stage_identity,
)
from nanoeuler.config.workflow_lock import WorkflowLock, is_incomplete
from nanoeuler.files import canonical_json

gc.disable()  # until jobs start: a sixth of the time to plan thousands of them
os.environ.update(job_environment(workflow.basedir))
start.explain_changes()
adapt_slurm_executor()
if workflow.is_main_process:
    end_in_sentences()
    workflow_lock = WorkflowLock()  # before Snakemake takes its own
config_files = workflow.overwrite_configfiles or ["config/config.yaml"]
config = start.read_configuration(config_files, workflow.config_settings.config)
paths = Paths(config)

for name, limit in limits(config, given=workflow.global_resources).items():
    workflow.register_resource(name, limit)
GPUS_HERE = workflow.global_resources["gpu"].value
JOB_GPUS, TRAINING_GPUS = job_gpus(config["device"]), training_gpus(config)
MODEL_THREADS = model_threads(min(JOB_GPUS, GPUS_HERE))
TRAINING_THREADS = model_threads(min(TRAINING_GPUS, GPUS_HERE))
cluster = ask_cluster() if workflow.is_main_process else None


onstart:
    gc.enable()
    jobs = list(workflow.dag.needrun_jobs())
    rules_to_run = {job.rule.name for job in jobs}
    gpus = min(TRAINING_GPUS, GPUS_HERE)
    if not workflow.local_exec:
        start.require_cluster(cluster, [job.resources for job in jobs if not job.is_local])
    start.require_plan(
        start.plan_command(config, rules_to_run, config_files, gpus, workflow.local_exec)
    )
    start.keep_what_is_needed(paths, jobs)
    needs = {job: workflow.dag.dependencies[job] for job in workflow.dag.jobs}
    start.write_pipeline(paths.pipeline, config, needs)


# Jobs use the interpreter that runs Snakemake. The image serves
# --software-deployment-method apptainer.
container: "docker://python:3.11-slim"


wildcard_constraints:
    id=r"\d+",
    shard=r"\d{3,6}",
    group=r"\d{3}",
    stage="pretrain|sft|sft_scratch|dpo",


include: "workflow/rules/corpus.smk"
include: "workflow/rules/groups.smk"
include: "workflow/rules/tokenizer.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/evaluation.smk"


# These rules need the network, or do small work for a download. They run where Snakemake runs: on a
# cluster, that is the login node.
localrules:
    write_sample,
    fetch_book,
    clean_book,
    extract_fineweb,
    fetch_instructions,
    fetch_preferences,
    fetch_questions,
    fetch_task,


rule all:
    default_target: True
    input:
        paths.gradients,
        paths.report,
        [file for stage in paths.stages for file in paths.model(stage).values()],


rule download:
    input:
        paths.downloads,
