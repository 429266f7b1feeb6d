"""The shapes of models that benchmarks take by name: the presets, and those of known models."""

from nanoeuler.model.config import PRESETS, ModelConfig

SHAPES = {name: {"preset": name} for name in PRESETS} | {
    "qwen3-0.6b": {
        **{"vocab_size": 151_936, "dim": 1024, "layers": 28, "heads": 16, "kv_heads": 8},
        **{"head_size": 128, "ffn": 3072, "context": 2048, "mtp_heads": 1, "tied": True},
        **{"qk_norm": "weighted", "rope_theta": 1e6},
    }
}


def model_of(shape: str) -> ModelConfig:
    return ModelConfig.from_dict(SHAPES[shape])
