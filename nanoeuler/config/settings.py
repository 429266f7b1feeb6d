"""Every key of the configuration: its type, range, default and meaning.

The sections corpus, tokenizer and evaluate are in data_settings.py, the model is in
model_settings.py, sample beside the world that it describes; the others are here.
config/README.md lists the same for people; `python scripts/configuration_keys.py` prints its lists.
A real type, such as `float`, stays an `int` where the file has a whole number: fingerprints are
made of what is written.
"""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from nanoeuler.backend import DeviceName
from nanoeuler.config.data_settings import Corpus, Evaluate, Tokenizer
from nanoeuler.config.model_settings import Model
from nanoeuler.corpus.sample.world import Sample
from nanoeuler.storage.section import Name, Reruns, Section, key, optional, section, subsection

Keep = Literal["final", "best"]


@section
class Training(Section):
    """The keys that every training stage has."""

    micro_batch_rows: Annotated[int, Ge(1)] | Literal["auto"] = key(
        "rows that are computed at once; a step consists of as many micro-batches as batch_tokens "
        "needs; auto takes as many rows as fit in memory",
        default="auto",
        reruns=Reruns.NEVER,
    )
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp8", "fp16"] = key(
        "number format of matrix products and activations on a GPU (weights and moments stay in "
        "fp32); auto is bf16, by WebGPU fp32; fp8 is bf16 with most products of training in e4m3, "
        "from compute capability 8.9 on; fp16, by WebGPU alone, is fp32 from activations that are "
        "kept in 16 bits, for less memory. A CPU computes in fp32",
        default="auto",
    )
    residual_precision: Literal["auto", "fp32", "bf16"] = key(
        "number format of the residual stream when precision is bf16 or fp8", default="auto"
    )
    sums_precision: Literal["fp32", "bf16"] = key(
        "number format in which several ranks send gradients and their sums to each other; bf16 "
        "halves what travels and rounds every sum; one rank sends nothing",
        default="fp32",
    )
    reproducible: Literal["ranks", "chip"] | None = key(
        "ranks: the weights have the same bits for any number of ranks (1, 2, 4 or 8), threads and "
        "rows of a micro-batch, by sums in one order; chip: on any arm64 processor, and x86-64 one "
        "with AVX2 and FMA, too, with --device cpu; null: for the same numbers alone",
        default=None,
    )
    recompute: bool = key(
        "compute the largest product of each layer again in the backward pass instead of keeping "
        "it, which takes a third less memory and somewhat more time",
        default=False,
        reruns=Reruns.NEVER,
    )
    minimum_learning_rate_share: float = key(
        "where the schedule ends, as a share of the peak learning rate", default=0.1, ge=0, le=1
    )
    warmup_steps: int = key(
        "steps in which the learning rate rises from 0 to its peak", default=100, ge=0
    )
    schedule: Literal["cosine", "wsd"] = key(
        "course of the learning rate after warm-up; cosine falls over the whole run; wsd (warm-up, "
        "stable, decay) stays at the peak and falls at the end, so that the run can be made longer "
        "later",
        default="cosine",
    )
    decay_share: float = key(
        "last share of the steps, in which a wsd schedule falls", default=0.2, gt=0, le=1
    )
    optimizer: Literal["adamw", "muon", "lion"] = key(
        "adamw; muon, which moves the matrices of the blocks by Muon and all else by AdamW; or "
        "lion, which keeps one tensor, not two, and takes a learning rate of a third or less",
        default="adamw",
    )
    muon_momentum: float = key("decay of Muon's momentum", default=0.95, ge=0, lt=1)
    embedding_rate: float = key(
        "learning rate of the embedding, as a multiple of learning_rate", default=1.0, gt=0
    )
    weight_decay: float = key("decoupled weight decay, on matrices only", default=0.1, ge=0)
    beta1: float = key("decay of AdamW's first moment", default=0.9, ge=0, lt=1)
    beta2: float = key("decay of AdamW's second moment", default=0.95, ge=0, lt=1)
    epsilon: float = key("AdamW's epsilon", default=1e-8, gt=0)
    clip_norm: float = key(
        "largest norm of the whole gradient; a longer gradient is scaled down to it",
        default=1.0,
        gt=0,
    )
    validate_every: int = key(
        "steps between two measurements on held-out text",
        default=100,
        ge=1,
        reruns=Reruns.IF_DECISIVE,
    )
    checkpoint_minutes: float = key(
        "minutes between two checkpoints of the training state, from which a stopped run resumes",
        default=10,
        gt=0,
        reruns=Reruns.NEVER,
    )
    rewinds: int = key(
        "how often a stage leaves out rows whose loss or gradient is not a number, and goes on, "
        "before it stops with an error",
        default=3,
        ge=0,
        reruns=Reruns.NEVER,
    )
    log_every: int = key(
        "steps between two lines in metrics.jsonl", default=10, ge=1, reruns=Reruns.NEVER
    )
    init_from: str | None = key(
        "folder of a model or of a checkpoint whose weights this stage starts from; null means "
        "random weights in pretrain, the pretrained model in sft, and the model of the stage "
        "before in dpo and rl",
        default=None,
        names_files=True,
    )
    batch_tokens: int = key("tokens of one optimizer step, padding included", ge=1)
    learning_rate: float = key("peak learning rate", gt=0, le=1)
    keep: Keep = key("which model the stage hands on: the final one or the best on held-out data")


@section
class Pretrain(Training):
    """The first training stage, on the corpus."""

    tokens: int = key("tokens to train on; more than the corpus has means several epochs", ge=1)
    batch_tokens: int = key("tokens of one optimizer step", ge=1)
    learning_rate: float = key("peak learning rate", gt=0, le=1)
    embedding_std: float = key(
        "standard deviation of the embedding's values before training; a larger one wants a larger "
        "embedding_rate",
        default=0.02,
        gt=0,
    )
    dropout: float = key(
        "share of attention's outputs and of the MLP's hidden values that the products behind them "
        "do not see, another one at each step; for text that is read many times",
        default=0.0,
        ge=0,
        lt=1,
    )
    grow_at: list[Annotated[int, Ge(1)]] = key(
        "steps after which the model grows in depth: twice the layers, each of half the step_size, "
        "compute nearly the same; training begins with so few layers that it ends with "
        "model.layers and model.step_size",
        default=[],
    )
    short_rows_until: int | None = key(
        "the steps before this one see parts of a row by themselves: eighths in the first third of "
        "them, then quarters, then halves, which helps where there are few steps",
        default=None,
        ge=1,
    )
    document_mask: bool = key(
        "attention stays within a document; false lets the documents of a row mix", default=True
    )
    validation_tokens: int = key(
        "held-out tokens per source that a measurement reads",
        default=100_000,
        ge=1,
        reruns=Reruns.IF_DECISIVE,
    )
    keep: Keep = key(
        "which model the stage hands on: the final one or the best on held-out text",
        default="final",
    )
    old_tokens: str | None = key(
        "manifest.json of the tokens that the model of init_from has learned from; some of them "
        "are mixed with the corpus, so that the model forgets less of them; null takes none",
        default=None,
        names_files=True,
    )
    old_share: float = key("old tokens for each token of the corpus", default=0.3, gt=0, le=100)
    sample_prompt: str | None = key(
        "a text that the model continues at every measurement, so that the log shows what it has "
        "learned; null writes no samples",
        default=None,
        reruns=Reruns.NEVER,
    )


@section
class Lora(Section):
    """Adapters of low rank (Hu et al. 2021), which are trained while the model itself is frozen."""

    rank: int = key("rank of the adapters", default=16, ge=1)
    alpha: float | None = key(
        "the adapters count alpha / rank times; null takes 2 · rank", default=None, gt=0
    )
    targets: str | list[str] = key(
        "the matrices that have adapters: all of the blocks, or a list of q_proj, k_proj, v_proj, "
        "o_proj, gate_proj, up_proj, down_proj (of GPT-2: c_attn, c_proj, c_fc)",
        default="all",
    )
    dropout: float = key(
        "share of their inputs that adapters do not see, another one at each step of training",
        default=0.0,
        ge=0,
        lt=1,
    )


@section
class Tuning(Training):
    """The keys that fine-tuning and alignment have and pretraining has not."""

    enabled: bool = key("whether this stage is part of the run", default=True, reruns=Reruns.NEVER)
    batch_tokens: int | None = key(  # type: ignore[assignment]
        "tokens of one optimizer step, padding included; null takes 16384, or as few as 2048 where "
        "the data would make less than 200 steps",
        default=None,
        ge=1,
    )
    warmup_steps: int | None = key(  # type: ignore[assignment]
        "steps in which the learning rate rises from 0 to its peak; null takes a tenth of all, 100 "
        "at most",
        default=None,
        ge=0,
    )
    validate_every: int | None = key(  # type: ignore[assignment]
        "steps between two measurements on held-out data; null takes a tenth of all, 100 at most",
        default=None,
        ge=1,
        reruns=Reruns.IF_DECISIVE,
    )
    minimum_fit_share: float = key(
        "the stage stops when a smaller share of the records or pairs fits whole into the context",
        default=0.5,
        ge=0,
        le=1,
        reruns=Reruns.NEVER,
    )
    patience: int | None = key(
        "the stage ends after this many measurements in a row that are no better than the best "
        "before; null lets it run to its end",
        default=None,
        ge=1,
    )
    keep: Keep = key(
        "which model the stage hands on: the final one or the best on held-out data", default="best"
    )
    validation_share: float = key(
        "share of the records or pairs that is held out; hashes of their prompts choose them",
        default=0.02,
        gt=0,
        le=0.5,
    )
    context: int | None = key("tokens of a record; null takes model.context", default=None, ge=2)
    epochs: float | None = key(
        "times that every record is seen; null takes what suits their number",
        default=None,
        gt=0,
        le=2**20,
    )
    lora: Lora = optional(
        "train adapters instead of the model itself, which takes less memory; left out, the whole "
        "model is trained"
    )

    EPOCHS: ClassVar[tuple[int, int]]
    """Epochs of plenty of records, and the most epochs of few."""


@section
class Sft(Tuning):
    """Fine-tuning on instructions."""

    instructions: str = key(
        "a name under instructions in the sources file, or the path of a file of records (in the "
        "shape of Alpaca or Dolly, or conversations as messages)",
        default="alpaca",
        min_length=1,
        reruns=Reruns.NEVER,
    )
    template: Literal["alpaca", "chat"] = key(
        "the prompt around an instruction; chat is shorter, for conversations of many turns",
        default="alpaca",
    )
    weighting: Literal["token", "record"] = key(
        "token gives every token of the responses the same weight; record gives every record the "
        "same weight, so that long responses do not drown short ones",
        default="token",
    )
    context: int | None = key(
        "tokens of a row, and of a conversation later; null takes model.context", default=None, ge=2
    )
    epochs: float | None = key(
        "times that every record is seen; null takes 3, or up to 10 where those would make less "
        "than 200 steps",
        default=None,
        gt=0,
        le=2**20,
    )
    learning_rate: float = key("peak learning rate", default=3.0e-4, gt=0, le=1)
    baseline_from_scratch: bool = key(
        "also fine-tune random weights (sft_scratch), to show what pretraining is worth",
        default=False,
        reruns=Reruns.NEVER,
    )

    EPOCHS = (3, 10)


@section
class Dpo(Tuning):
    """Aligning the tuned model with preferences."""

    preferences: str = key(
        "a name under preferences in the sources file, or the path of a file of pairs (JSON, JSON "
        "lines or parquet)",
        default="alpaca_farm",
        min_length=1,
        reruns=Reruns.NEVER,
    )
    context: int | None = key(
        "tokens of a prompt with one reply; null takes sft.context, or model.context where there "
        "is no sft",
        default=None,
        ge=2,
    )
    loss: Literal["sigmoid", "simpo"] = key(
        "sigmoid is DPO's loss, which measures replies against the model that the stage starts "
        "from; simpo compares their log-probabilities per token, with a margin",
        default="sigmoid",
    )
    beta: float = key(
        "scale of the rewards; a lower one lets the model move further from where it starts "
        "(simpo wants about 2)",
        default=0.1,
        gt=0,
    )
    label_smoothing: float = key(
        "share of the preferences that are assumed to be the wrong way round",
        default=0,
        ge=0,
        lt=0.5,
    )
    target_margin: float = key(
        "how much further apart the rewards should be, with simpo only", default=0.5, ge=0
    )
    epochs: float | None = key(
        "times that every pair is seen; null takes 1, or up to 3 where that would make less than "
        "200 steps",
        default=None,
        gt=0,
        le=2**20,
    )
    learning_rate: float = key("peak learning rate", default=5.0e-5, gt=0, le=1)

    EPOCHS = (1, 3)


@section
class Rl(Tuning):
    """Learning from the rewards of the model's own replies."""

    problems: str = key(
        "a name under problems in the sources file, or the path of a file (JSON, JSON lines or "
        "parquet, with a question and its answer)",
        default="world",
        min_length=1,
        reruns=Reruns.NEVER,
    )
    reward: str | list[str] = key(
        "what a reply earns: answer (its first line is the answer), number (its last number is the "
        "answer's), regex (the answer, a regular expression, is found in it), regex:PATTERN, "
        "schema:FILE (it is JSON that this schema allows), or FILE.py:FUNCTION of your own; a list "
        "is a sum, whose items may have a weight in front, such as 0.5 * number",
        default="answer",
        names_files=True,
    )
    reward_seconds: float = key(
        "the longest that a function of your own or a regular expression may take for a reply",
        default=10,
        gt=0,
        reruns=Reruns.NEVER,
    )
    group: int = key(
        "replies that are sampled to each problem; the mean reward of the others is what a reply "
        "is measured by",
        default=8,
        ge=2,
    )
    max_new_tokens: int | None = key(
        "most tokens of a reply; null takes half of the context, 256 at most", default=None, ge=1
    )
    only_ended: bool = key(
        "a reply that is cut off at max_new_tokens earns nothing; false rewards what it has",
        default=True,
    )
    uses: int = key("updates on each batch of replies", default=1, ge=1)
    clip: float | None = key(
        "a token teaches nothing more once its probability has moved by this share in the "
        "direction of its reward (PPO), which matters where uses is above 1; null never clips",
        default=0.2,
        gt=0,
        lt=1,
    )
    kl: float = key(
        "what each nat costs that a reply is likelier than under the model that the stage starts "
        "from; above 0, that model is kept in memory, too",
        default=0,
        ge=0,
    )
    divide_by_spread: bool = key(
        "divide by the spread of a group's rewards, as GRPO does; problems that are nearly always "
        "or nearly never solved then weigh more",
        default=False,
    )
    divide_by_length: bool = key(
        "divide by the reply's length, as GRPO does; short right replies and long wrong ones then "
        "earn more",
        default=False,
    )
    skip_decided: bool = key(
        "leave out problems whose replies all earn the same, which teach nothing; the others then "
        "weigh more",
        default=False,
    )
    entropy_floor: float = key(
        "nats per token; the stage stops when its replies have a lower entropy in entropy_steps "
        "batches in a row; 0 never stops it",
        default=0,
        ge=0,
        reruns=Reruns.NEVER,
    )
    entropy_steps: int = key(
        "batches of replies below entropy_floor that stop the stage",
        default=20,
        ge=1,
        reruns=Reruns.NEVER,
    )
    context: int | None = key(
        "tokens of a problem with a reply; null takes that of the stage before, or model.context",
        default=None,
        ge=2,
    )
    batch_tokens: int | None = key(
        "tokens of one optimizer step, padding included: group rows for each of its problems; null "
        "takes 16384, or as few as 2048 where the data would make less than 200 steps",
        default=None,
        ge=1,
    )
    epochs: float | None = key(
        "times that every problem is asked; null takes 1, or up to 10 where that would make less "
        "than 200 steps",
        default=None,
        gt=0,
        le=2**20,
    )
    learning_rate: float = key("peak learning rate", default=5.0e-5, gt=0, le=1)

    EPOCHS = (1, 10)


@section
class Energy(Section):
    """What electricity costs elsewhere."""

    grams_per_kwh: float | None = key(
        "grams of CO₂ for a kilowatt-hour where the machine stands; null plans energy alone",
        default=None,
        ge=0,
        reruns=Reruns.NEVER,
    )


@section
class Slurm(Section):
    """The resources that a job asks of a cluster."""

    account: str | None = key(
        "account that jobs are charged to; null takes the user's default", default=None
    )
    partition: str | None = key(
        "partition of the jobs that want a GPU; null takes the cluster's default", default=None
    )
    cpu_partition: str | None = key(
        "partition of the other jobs; null takes the cluster's default", default=None
    )
    hours: float = key(
        "wall time of a training job; at its end the job saves, and its retry resumes",
        default=12,
        gt=0,
    )
    cpus: int | None = key(
        "CPUs of a job; null takes 16, or all of a node that has fewer", default=None, ge=1
    )
    network: bool = key(
        "whether compute nodes reach the network: jobs then download and extract web pages and "
        "documents, which otherwise the login node does",
        default=False,
    )
    nodes: int = key(
        "nodes that share each step of a training stage, with `gpus` GPUs on each, or without GPUs "
        "a process on each",
        default=1,
        ge=1,
    )


@section
class Configuration(Section):
    """A whole configuration file."""

    run: Name = key("name of the run; its models, logs, report and model card go to results/<run>/")
    seed: int = key(
        "seed of everything random in training and sampling", default=1, ge=0, le=4294967295
    )
    device: DeviceName = key(
        "where models run; auto takes the GPU when there is one, reference is the plain NumPy "
        "specification",
        default="auto",
        reruns=Reruns.NEVER,
    )
    gpus: int = key(
        "GPUs that share each step of a training stage, where the machine has as many; all other "
        "jobs take one",
        default=1,
        ge=1,
        reruns=Reruns.NEVER,
    )
    max_hours: float | None = key(
        "a run that would take longer than this on the device at hand is stopped before anything "
        "is downloaded; null lets any run start",
        default=24,
        gt=0,
        reruns=Reruns.NEVER,
    )
    data_dir: str = key(
        "folder of everything downloaded and prepared; runs share it",
        default="data",
        min_length=1,
        reruns=Reruns.NEVER,
    )
    results_dir: str = key(
        "folder of the runs", default="results", min_length=1, reruns=Reruns.NEVER
    )
    checkpoint_mirror: str | None = key(
        "where checkpoints are copied to, and fetched from by a machine that has none: a path, or "
        "an address such as s3://bucket/prefix; null copies none",
        default=None,
        min_length=1,
        reruns=Reruns.NEVER,
    )
    sources: str | None = key(
        "YAML file with every address that is downloaded, its size, hash and licence; null for a "
        "run of your own text alone",
        default=None,
        min_length=1,
    )
    sample: Sample = optional(
        "a small invented world; with this section it is written to data_dir/sample first, for "
        "sources that point there, and nothing is downloaded; a key left out has the demo's value"
    )
    corpus: Corpus = subsection(Corpus, "the text that is learned from")
    tokenizer: Tokenizer = subsection(Tokenizer, "the byte-level BPE")
    model: Model = key("the transformer; a preset and whatever differs from it, or every field")
    pretrain: Pretrain = key("the first training stage, on the corpus")
    sft: Sft = subsection(Sft, "fine-tuning on instructions", enabled=False)
    dpo: Dpo = subsection(Dpo, "aligning the tuned model with preferences", enabled=False)
    rl: Rl = subsection(Rl, "learning from the rewards of the model's own replies", enabled=False)
    index: bool = key(
        "index the tokens, 4 bytes for each, so that `nanoeuler trace` says where a text comes "
        "from, and the evaluation how much of the replies is copied",
        default=False,
        reruns=Reruns.NEVER,
    )
    evaluate: Evaluate = subsection(Evaluate, "what is measured of every stage's model")
    energy: Energy = subsection(
        Energy, "what `nanoeuler plan` says beside joules", reruns=Reruns.NEVER
    )
    slurm: Slurm = subsection(
        Slurm,
        "what a job asks of a cluster (used with --workflow-profile profiles/slurm)",
        reruns=Reruns.NEVER,
    )
