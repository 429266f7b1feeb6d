"""A plan as lines for a terminal."""

from nanoeuler.corpus.sources.registry import ALL_TEXTS
from nanoeuler.log import counted, format_seconds, size
from nanoeuler.planning.plan import Config, Plan, is_short

SOURCE_NAMES = {source.name: source.title for source in ALL_TEXTS}


def describe(config: Config, plan: Plan) -> str:
    """The plan as lines for a terminal."""
    wanted = [
        f"{name} {'(size not stated)' if amount is None else size(amount)}"
        for name, amount in plan.download.items()
        if amount != 0
    ]
    rate, speed = plan.tokens_per_second, ""
    if rate:
        if "pretrain" in plan.stages:
            stage = plan.stages["pretrain"]
            rate = stage.tokens / (stage.tokens / rate + stage.updates)
        speed = f", about {rate:,.0f} tokens/s"
    data = f"{size(plan.data_disk)} in {config['data_dir']}"
    results = f"{size(plan.results_disk)} in {config['results_dir']}"
    if plan.results_peak > 1.01 * plan.results_disk:
        results += f" ({size(plan.results_peak)} while it trains)"
    checkpoints = f"{size(plan.checkpoint)} a checkpoint"
    each = (
        f"{size(plan.gpu_memory)} of memory without activations; sends and receives "
        f"{size(plan.step_traffic)} a step"
    )
    text = (
        f"{size(plan.text_bytes)}, about {token_count(plan.text_tokens)}; "
        f"{size(plan.held_out_bytes)} held out"
    )
    facts = [
        ("download", ", ".join(wanted) or "nothing"),
        ("disk", f"{data}, {results}, {checkpoints}"),
        *([("memory", f"{size(plan.memory)} at least")] if plan.memory else []),
        *([("each GPU", each)] if plan.gpu_memory else []),
        ("text", text),
        *((name, describe_stage(config, plan, name)) for name in plan.stages),
        *(("bits/byte", score) for score in describe_score(plan)),
        *(("assumed", assumption) for assumption in plan.assumptions),
    ]
    width = max(10, *(len(name) for name, _ in facts))
    first = f"run {config['run']}: {plan.parameters:,} parameters on {plan.engine}{speed}"
    return "\n".join([first, *(f"  {name:{width}} {fact}" for name, fact in facts)])


def describe_score(plan: Plan) -> list[str]:
    if plan.no_bits_per_byte:
        return [f"no estimate: {plan.no_bits_per_byte}"]
    found = ", ".join(
        f"{SOURCE_NAMES[source]} {bits.middle:.2f} ({bits.low:.2f} to {bits.high:.2f})"
        for source, bits in plan.bits_per_byte.items()
    )
    return [f"{found}, held out, after pretraining"] if found else []


def describe_stage(config: Config, plan: Plan, name: str) -> str:
    stage = plan.stages[name]
    epochs = counted(float(f"{stage.epochs:.2g}"), "epoch")
    if stage.seconds is not None:
        duration = f"about {format_seconds(stage.seconds)}"
    else:
        duration = "minutes at most" if is_short(config, plan) else "not probed"
    return f"{token_count(stage.tokens)}, {epochs}, {counted(stage.steps, 'step')}, {duration}"


def token_count(amount: float) -> str:
    return f"{amount / 1e6:,.1f} M tokens" if amount >= 1e6 else f"{round(amount, -3):,.0f} tokens"
