"""The shape of the small models that tests make."""

SHAPE = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 75, "mtp_heads": 2}
