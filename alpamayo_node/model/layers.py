# SPDX-License-Identifier: Apache-2.0
"""
The expert's decoder layer, in the form that runs.

    x -> RMSNorm -> q, k, v -> norm of q and k per head -> rope -> attention -> o_proj -> + x
      -> RMSNorm -> silu(gate) * up -> down -> + x

Against the textbook form, q, k and v are one matrix product, q and k are normed and rotated as one
tensor with the attention's scale in the norm's weight, SiLU and the product with gate are part of
the matrix products, weights are stored in the block order that oneDNN multiplies in, and attention
runs as `attention` says. `reference` holds the textbook form.

At bfloat16, linear layers and attention are bfloat16; norms, rope and the residual stream are
float32. At float32, everything is.

Axes: N own tokens, H hidden channels, G key-value heads, D head channels.
Source: the Qwen3-VL text model of huggingface/transformers.
"""

import torch
from torch.nn import functional as F

from alpamayo_node.model.attention import attend
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.checkpoint import layer_prefix
from alpamayo_node.model.kv_cache import KvCache
from alpamayo_node.model.linear import Linear
from alpamayo_node.model.rope import apply_rope


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
        self.gate = linear('mlp.gate')
        self.up = linear('mlp.up')
        self.down = linear('mlp.down')
        self._input_norm = norm('input_layernorm')
        self._mlp_norm = norm('post_attention_layernorm')
        scaled_q_norm = norm('self_attn.q_norm') * self._text.head_dim**-0.5
        self._qk_norm = torch.cat(
            [
                scaled_q_norm.expand(self._text.n_heads, -1),
                norm('self_attn.k_norm').expand(self._text.n_kv_heads, -1),
            ]
        )

    def __call__(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        cache: KvCache,
    ) -> torch.Tensor:
        """
        Run the layer; writes the own rows of its cache.

        :param x: (N, H) float32, left unchanged
        :param rope: tables of the own tokens' positions, from `rope_tables`
        :param cache: with a context loaded
        :return: (N, H) float32
        """
        x = x + self._attend(self._norm(x, self._input_norm), rope, cache)
        h = self._norm(x, self._mlp_norm)
        return x + self.down(self.up.times(h, self.gate.silu(h)))

    def _attend(
        self,
        h: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        cache: KvCache,
    ) -> torch.Tensor:
        text = self._text
        heads = self.qkv(h).view(len(h), -1, text.head_dim)
        n_rotated = text.n_heads + text.n_kv_heads
        normed = F.rms_norm(heads[:, :n_rotated].float(), (text.head_dim,), None, text.rms_eps)
        rotated = apply_rope(normed * self._qk_norm, *rope)
        cache.store_own(self._i_layer, rotated[:, text.n_heads :], heads[:, n_rotated:])
        return self.o(attend(rotated[:, : text.n_heads], *cache.visible(self._i_layer)))

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
