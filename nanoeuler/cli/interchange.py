"""Subcommands that make a model folder of another: `export`, `import`, `quantize`, `accept` and
`refine`; and `events`, which writes a run's curves for other programs."""

import argparse
from pathlib import Path

from nanoeuler import log
from nanoeuler.cli.parser import Subparsers, model_folder
from nanoeuler.errors import UserError
from nanoeuler.model.template import TEMPLATES


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "export",
        help="write a model for transformers, llama.cpp or Ollama",
        description="Write a model as a folder that transformers reads, as a GGUF file for "
        "llama.cpp with Ollama's Modelfile beside it, or as a model folder like the one it comes "
        "from, with --dtype bf16 half as large. Other programs get no extra prediction heads.",
    )
    parser.add_model()
    parser.add_argument(
        "--format",
        choices=("hf", "gguf", "nanoeuler"),
        required=True,
        help="Hugging Face's folder, GGUF, or a model folder of nanoeuler's",
    )
    parser.add_argument(
        "--dtype",
        choices=("f32", "f16", "bf16", "q8_0", "q4_0"),
        default="f32",
        help="type of the weights (default f32, as they were trained); q8_0 and q4_0 are "
        "GGUF's only",
    )
    parser.add_path("--output", "DIR", "the new folder to write")
    parser.finish(run_export)

    parser = subparsers.add_parser(
        "import",
        help="take a Llama-class model or a GPT-2 from Hugging Face's folder",
        description="Read a folder of Hugging Face's with a Llama-class model or a GPT-2 in "
        "safetensors, and write a model folder, which can be evaluated, chatted with and trained "
        "further. With --base, read PEFT's folder of adapters (LoRA), and merge them into the "
        "model that they belong to.",
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="Hugging Face's folder, or with --base PEFT's"
    )
    parser.add_optional_path("--base", "DIR", "model that the adapters in FOLDER belong to")
    parser.add_argument(
        "--template",
        choices=tuple(TEMPLATES),
        help="the prompts that the model was tuned on (default: those that its folder tells of)",
    )
    parser.add_path("--output", "DIR", "the new model folder to write")
    parser.finish(run_import)

    parser = subparsers.add_parser(
        "quantize",
        help="write a model with weights of 8 or 4 bits",
        description="Write a model folder whose weights are whole numbers of 8 or 4 bits with a "
        "scale for each 32 of them. generate, chat, serve, evaluate and export take it like any "
        "other; nothing trains it further.",
    )
    parser.add_argument(
        "folder", metavar="MODEL", help="model folder, or the folder of a stage or a run"
    )
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the new folder to write")
    parser.add_argument(
        "--to",
        choices=("int8", "int4"),
        required=True,
        help="int8: all matrices in 8 bits; int4: most of the layers' in 4, the others in 8",
    )
    parser.add_optional_path(
        "--text",
        "FILE",
        "a text that the model was not trained on: bits per byte before and after are printed",
    )
    parser.finish(run_quantize)


def run_export(options: argparse.Namespace) -> None:
    from nanoeuler.interchange.exporting import export

    export(model_folder(options), options.format, options.dtype, options.output)
    log.line("export", str(options.output), format=options.format, dtype=options.dtype)


def run_import(options: argparse.Namespace) -> None:
    from nanoeuler.inference.finding import find_model
    from nanoeuler.interchange.adapters import import_adapters
    from nanoeuler.interchange.importing import import_folder

    if options.base is not None:
        if options.template:
            raise UserError(
                "--template and --base: the prompts are those of the base; leave it out"
            )
        model = import_adapters(options.folder, find_model(options.base), options.output)
    else:
        model = import_folder(options.folder, options.output, options.template)
    log.line("import", str(options.output), template=model.template or "none")


def run_quantize(options: argparse.Namespace) -> None:
    from nanoeuler.inference.finding import find_model
    from nanoeuler.interchange.quantizing import quantize_folder

    quantize_folder(find_model(Path(options.folder)), options.output, options.to, options.text)


def register_changes(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "accept",
        help="take a model, records or a tokenizer that you changed yourself",
        description="What a stage reads must be what the stage before wrote, to the bit. Of a "
        "model folder, a folder of instructions or preferences, or a tokenizer.json that you "
        "changed or made yourself, this notes the present hashes, if it can be read at all.",
    )
    parser.add_argument("path", type=Path, help="the folder, or the tokenizer.json")
    parser.finish(run_accept)

    parser = subparsers.add_parser(
        "refine",
        help="double a model's layers, so that it can be trained further",
        description="Write a model with twice the layers, each of half the step (h of "
        "x + h·f(x)): to first order the same function. To train it further, give its folder as "
        "pretrain.init_from. `pretrain.grow_at` refines a model within a run, with the moments of "
        "its optimizer.",
    )
    parser.add_model()
    parser.add_path("--output", "DIR", "folder of the deeper model")
    parser.finish(run_refine)

    parser = subparsers.add_parser(
        "events",
        help="write a run's curves for TensorBoard or trackio",
        description="Write what a run has measured as TensorBoard's event files, a folder for each "
        "stage; trackio imports them, too. Training itself sends nothing anywhere.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="such as results/demo")
    parser.add_path("--output", "DIR", "where DIR/RUN/STAGE are written")
    parser.add_flag("--follow", "go on until the stages that are there have finished")
    parser.finish(run_events)


def run_events(options: argparse.Namespace) -> None:
    from nanoeuler.interchange.event_files import write_events

    for folder in write_events(options.folder, options.output, follow=options.follow):
        log.line("events", str(folder))


def run_accept(options: argparse.Namespace) -> None:
    from nanoeuler.interchange.accepting import accept

    changed = accept(options.path)
    names = ", ".join(map(str, changed)) or "nothing was changed"
    log.line("accepted", names)


def run_refine(options: argparse.Namespace) -> None:
    from nanoeuler.model.refining import refine_folder

    config = refine_folder(model_folder(options), options.output)
    log.line(
        "model",
        f"{options.output}: to train it further, set model.layers: {config.layers}, "
        f"model.step_size: {config.step_size:g} and pretrain.init_from: {options.output}",
    )
