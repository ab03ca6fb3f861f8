# SPDX-License-Identifier: Apache-2.0
"""
The expert's decoder layer, in the form that runs.

    x -> RMSNorm -> q, k, v -> norm of q and k per head -> rope -> attention -> o_proj -> + x
      -> RMSNorm -> silu(gate) * up -> down -> + x

Against the textbook form, q, k and v are one matrix product, gate and up are another, weights are
stored in the block order that oneDNN multiplies in, and attention runs as `attention` says.
`reference` holds the textbook form.

At bfloat16, linear layers and attention are bfloat16; norms, rope and the residual stream are
float32. At float32, everything is.

Axes: N own tokens, H hidden channels, G key-value heads, D head channels.
Source: the Qwen3-VL text model of huggingface/transformers.
"""

import torch
from torch.nn import functional as F

from alpamayo_node.model.attention import Attention
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.checkpoint import layer_prefix
from alpamayo_node.model.kv_cache import KvCache
from alpamayo_node.model.rope import apply_rope


class Linear:
    """A linear layer without bias, its weight packed for a known number of rows."""

    def __init__(self, weight: torch.Tensor, n_rows: int) -> None:
        """
        Pack the weight; the tensor that was given is not kept.

        :param weight: (out, in), bfloat16 or float32
        :param n_rows: rows of the inputs to come
        """
        # Only builds of torch with oneDNN have the packed form; elsewhere the plain one is used.
        self._is_packed = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight, n_rows)  # noqa: SLF001
            if self._is_packed
            else weight
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """
        Multiply.

        :param x: (n_rows, in), of the weight's dtype
        :return: (n_rows, out), of the weight's dtype
        """
        if not self._is_packed:
            return F.linear(x, self._weight)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            x, self._weight, None, 'none', [], ''
        )
        return product


class DecoderLayer:
    """One layer with its weights."""

    def __init__(
        self, checkpoint: Checkpoint, i_layer: int, *, n_tokens: int, dtype: torch.dtype
    ) -> None:
        """
        Read and pack one layer's weights.

        :param checkpoint: opened
        :param i_layer: index of the layer
        :param n_tokens: N
        :param dtype: of linear layers and attention
        """
        self._text = checkpoint.config.expert
        self._i_layer = i_layer
        self._dtype = dtype
        prefix = layer_prefix(i_layer)

        def norm(name: str) -> torch.Tensor:
            return checkpoint.get(f'{prefix}{name}.weight').float()

        def linear(*names: str) -> Linear:
            weight = _read_stacked(checkpoint, [f'{prefix}{name}_proj.weight' for name in names])
            return Linear(weight.to(dtype), n_tokens)

        self.qkv = linear('self_attn.q', 'self_attn.k', 'self_attn.v')
        self.o = linear('self_attn.o')
        self.gate_up = linear('mlp.gate', 'mlp.up')
        self.down = linear('mlp.down')
        self._input_norm = norm('input_layernorm')
        self._q_norm = norm('self_attn.q_norm')
        self._k_norm = norm('self_attn.k_norm')
        self._mlp_norm = norm('post_attention_layernorm')

    def __call__(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: KvCache,
        attention: Attention,
    ) -> torch.Tensor:
        """
        Run the layer; writes the own rows of its cache.

        :param x: (N, H) float32, left unchanged
        :param cos: (N, D) float32
        :param sin: (N, D) float32
        :param cache: with a context loaded
        :param attention: shared by all layers
        :return: (N, H) float32
        """
        x = x + self._attend(self._norm(x, self._input_norm), cos, sin, cache, attention)
        gate, up = self.gate_up(self._norm(x, self._mlp_norm)).chunk(2, dim=1)
        return x + self.down(F.silu(gate) * up)

    def _attend(
        self,
        h: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: KvCache,
        attention: Attention,
    ) -> torch.Tensor:
        text = self._text
        heads = self.qkv(h).view(len(h), -1, text.head_dim)
        q, k, v = torch.split(heads, [text.n_heads, text.n_kv_heads, text.n_kv_heads], dim=1)
        q = apply_rope(rms_norm(q.float(), self._q_norm, text.rms_eps), cos, sin)
        k = apply_rope(rms_norm(k.float(), self._k_norm, text.rms_eps), cos, sin)
        cache.store_own(self._i_layer, k, v)
        return self.o(attention(q, *cache.visible(self._i_layer)))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self._text.rms_eps).to(self._dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """
    Scale the last axis to unit mean square, then by a weight.

    :param x: (..., C) float32
    :param weight: (C,) float32
    :param eps: added to the mean square
    :return: (..., C) float32
    """
    return F.rms_norm(x, weight.shape, weight, eps)


def _read_stacked(checkpoint: Checkpoint, names: list[str]) -> torch.Tensor:
    """Weights that share an input, one below the other, each read straight to its place."""
    rows = [checkpoint.shape(name)[0] for name in names]
    stacked = torch.empty(sum(rows), checkpoint.shape(names[0])[1], dtype=torch.bfloat16)
    for name, part in zip(names, torch.split(stacked, rows), strict=True):
        checkpoint.read_into(name, part)
    return stacked
