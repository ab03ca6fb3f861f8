# SPDX-License-Identifier: Apache-2.0
"""
The expert in the plainest form: NumPy, float64, one formula a line.

Nothing here is shared with the form that runs, neither the weights' layout nor a function, so that
the self-test can hold one against the other. Weights are read again from the checkpoint.

Axes: N own tokens, S context rows, G key-value heads, D head channels.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
import torch

from alpamayo_node.model.checkpoint import IN_PROJ
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.checkpoint import layer_prefix
from alpamayo_node.model.config import TextConfig

type Array = NDArray[np.float64]


def plain_layer(
    checkpoint: Checkpoint,
    i_layer: int,
    x: Array,
    context: tuple[Array, Array],
    first_position: int,
) -> Array:
    """
    Run one decoder layer.

    :param checkpoint: where the weights come from
    :param i_layer: index of the layer
    :param x: (N, hidden)
    :param context: visible keys, rotated, and values, each (G, S, D)
    :param first_position: of the first own token
    :return: (N, hidden)
    """
    text = checkpoint.config.expert

    def read(name: str) -> Array:
        return _to_array(checkpoint.get(f'{layer_prefix(i_layer)}{name}.weight'))

    h = _rms(x, read('input_layernorm'), text.rms_eps)
    x = x + _attend(h, read, text, context, first_position) @ read('self_attn.o_proj').T
    h = _rms(x, read('post_attention_layernorm'), text.rms_eps)
    gate = h @ read('mlp.gate_proj').T
    up = h @ read('mlp.up_proj').T
    return x + (_silu(gate) * up) @ read('mlp.down_proj').T


def plain_in_proj(checkpoint: Checkpoint, x: Array, t: float, freqs: Array) -> Array:
    """
    Run the input projection.

    :param checkpoint: where the weights come from
    :param x: (N, 2), normalised actions
    :param t: time of the flow
    :param freqs: (K,) of the Fourier features
    :return: (N, hidden)
    """

    def read(name: str) -> Array:
        return _to_array(checkpoint.get(f'{IN_PROJ}{name}'))

    parts = []
    for s in (x[:, 0], x[:, 1], np.full(len(x), t)):
        phase_rad = 2 * np.pi * np.outer(s, freqs)
        parts += [np.sqrt(2) * np.sin(phase_rad), np.sqrt(2) * np.cos(phase_rad)]
    h = np.concatenate(parts, axis=1)
    for i in range(0, 3 * checkpoint.config.in_proj.n_layers + 1, 3):
        if i:
            h = _rms(_silu(h), read(f'encoder.trunk.{i - 1}.weight'), 1e-5)
        h = h @ read(f'encoder.trunk.{i}.weight').T + read(f'encoder.trunk.{i}.bias')
    centred = h - h.mean(axis=1, keepdims=True)
    scaled: Array = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    return scaled * read('norm.weight') + read('norm.bias')


def _attend(
    h: Array,
    read: Callable[[str], Array],
    text: TextConfig,
    context: tuple[Array, Array],
    first: int,
) -> Array:
    q = _heads(h @ read('self_attn.q_proj').T, text.head_dim)
    k = _heads(h @ read('self_attn.k_proj').T, text.head_dim)
    v = _heads(h @ read('self_attn.v_proj').T, text.head_dim)
    q = _rotate(_rms(q, read('self_attn.q_norm'), text.rms_eps), first, text.rope_theta)
    k = _rotate(_rms(k, read('self_attn.k_norm'), text.rms_eps), first, text.rope_theta)
    mixed = []
    for i_head in range(text.n_heads):
        i_kv = i_head // text.n_groups
        keys = np.concatenate([context[0][i_kv], k[i_kv]])
        values = np.concatenate([context[1][i_kv], v[i_kv]])
        scores = q[i_head] @ keys.T / np.sqrt(text.head_dim)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed.append(weights @ values / weights.sum(axis=1, keepdims=True))
    return np.concatenate(mixed, axis=1)


def _heads(flat: Array, head_dim: int) -> Array:
    return flat.reshape(len(flat), -1, head_dim).transpose(1, 0, 2)


def _rotate(heads: Array, first: int, theta: float) -> Array:
    """Each pair of channels (j, j + D/2) is a complex number; turn it by its angle."""
    n_tokens, half = heads.shape[1], heads.shape[2] // 2
    turns = np.outer(first + np.arange(n_tokens), theta ** (-np.arange(half) / half))
    turned = (heads[..., :half] + 1j * heads[..., half:]) * np.exp(1j * turns)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _rms(x: Array, weight: Array, eps: float) -> Array:
    scaled: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    return scaled * weight


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _to_array(tensor: torch.Tensor) -> Array:
    array: Array = tensor.to(torch.float64).numpy()
    return array
