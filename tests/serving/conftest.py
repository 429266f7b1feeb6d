"""The models of tests/inference, for tests that serve them."""

from tests.inference.conftest import (  # noqa: F401
    base_folder,
    tokenizer,
    tokenizer_path,
    tuned_folder,
)
