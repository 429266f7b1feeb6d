"""Chat templates as other programs fill them in."""

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment


def filled(template: str, messages: list[dict[str, str]], *, more: bool) -> str:
    """A chat template as transformers fills it in."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = pytest.fail
    return environment.from_string(template).render(
        messages=messages, add_generation_prompt=more, bos_token="</s>", eos_token="</s>"
    )
