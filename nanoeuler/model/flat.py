"""One contiguous buffer for all parameters (or gradients, or a moment), with a named view for each tensor."""

from typing import Any

from nanoeuler.model.spec import ModelConfig, Tensor, head_name, storage_elements, tensor_table


class FlatBuffer:
    """Views into one flat array laid out by `tensor_table`.

    `buffer[name]` has the tensor's shape, `packed` spans adjacent tensors as one matrix in storage shape. The array may be
    NumPy's or CuPy's: only slices and reshapes are taken.
    """

    def __init__(self, config: ModelConfig, array: Any):
        self.table = tensor_table(config)
        self.rows = {tensor.name: tensor for tensor in self.table}
        if array.shape != (storage_elements(self.table),):
            raise ValueError(
                f"a flat buffer of shape {array.shape} does not fit the tensor table, which needs {storage_elements(self.table)} elements"
            )
        self.array = array

    @staticmethod
    def elements(config: ModelConfig) -> int:
        """Length of a flat buffer for `config`."""
        return storage_elements(tensor_table(config))

    def storage(self, name: str) -> Any:
        """View in storage shape, padding included."""
        tensor = self.rows[name]
        return self.array[tensor.offset : tensor.stop].reshape(tensor.storage_shape)

    def __getitem__(self, name: str) -> Any:
        return self.storage(name)[tuple(slice(size) for size in self.rows[name].shape)]

    def packed(self, *names: str) -> Any:
        """The adjacent matrices `names` as one matrix (their storage rows one after another)."""
        first, last = self.rows[names[0]], self.rows[names[-1]]
        columns = first.storage_shape[1]
        return self.array[first.offset : last.stop].reshape(-1, columns)


class LayerViews:
    """The tensors of one layer in the form in which the forward and backward passes use them."""

    def __init__(self, buffer: FlatBuffer, norms: FlatBuffer, layer: int):
        prefix = f"model.layers.{layer}"
        self.attention_norm = norms[f"{prefix}.input_layernorm.weight"]
        self.query_key_value = buffer.packed(
            *(f"{prefix}.self_attn.{part}_proj.weight" for part in "qkv")
        )
        self.attention_output = buffer[f"{prefix}.self_attn.o_proj.weight"]
        self.mlp_norm = norms[f"{prefix}.post_attention_layernorm.weight"]
        self.gate_up = buffer.packed(
            f"{prefix}.mlp.gate_proj.weight", f"{prefix}.mlp.up_proj.weight"
        )
        self.down = buffer.storage(f"{prefix}.mlp.down_proj.weight")


class ModelViews:
    """All tensors of a model in the form in which the forward and backward passes use them."""

    def __init__(self, config: ModelConfig, array: Any, norms: Any = None):
        """`norms`: another flat buffer that the weights of the norms are taken from, where `array` holds matrices for products."""
        buffer, norms = (
            FlatBuffer(config, array),
            FlatBuffer(config, array if norms is None else norms),
        )
        self.buffer = buffer
        self.embedding = buffer["model.embed_tokens.weight"]
        self.layers = [LayerViews(buffer, norms, layer) for layer in range(config.layers)]
        self.final_norm = norms["model.norm.weight"]
        first = "model.embed_tokens.weight" if config.tied else head_name(0)
        names = [first, *(head_name(head) for head in range(1, config.mtp_heads))]
        self.heads = buffer.packed(*names)
        self.first_head = buffer.storage(first)
        """Head 0 alone: all that generation needs."""


class PackedColumns:
    """Where each part of a packed product lies in its output columns (rows of the weight, padding included)."""

    def __init__(self, config: ModelConfig):
        rows: dict[str, Tensor] = {tensor.name: tensor for tensor in tensor_table(config)}
        query = rows["model.layers.0.self_attn.q_proj.weight"].storage_shape[0]
        key = rows["model.layers.0.self_attn.k_proj.weight"].storage_shape[0]
        gate = rows["model.layers.0.mlp.gate_proj.weight"].storage_shape[0]
        head = rows[
            head_name(config.mtp_heads - 1)
            if config.mtp_heads > 1 or not config.tied
            else "model.embed_tokens.weight"
        ].storage_shape[0]
        self.query_key_value = query + 2 * key
        self.query = slice(0, config.heads * config.head_size)
        self.key = slice(query, query + config.kv_heads * config.head_size)
        self.value = slice(query + key, query + key + config.kv_heads * config.head_size)
        self.gate_up = 2 * gate
        self.gate = slice(0, config.ffn_storage)
        self.up = slice(gate, gate + config.ffn_storage)
        self.head = head
        self.heads = config.mtp_heads * head
