# SPDX-License-Identifier: Apache-2.0
"""
Hold a loaded network against the plain form before anyone relies on it.

A context of NaN is loaded, then a short synthetic one with left padding on top of it, so that
every row that must not be read is poison. The whole network runs once, which also warms it up, and
must give finite velocities. Then the in-projection and three layers (first, middle, last) are
compared with `reference`, which reads the weights again from disk. What is compared is each
layer's change of its input: norm of the difference over norm of the change. Weights that were
mixed up, damaged in memory or packed wrongly, a kernel of torch that fails on this processor, and
a window of the cache that is off by a row all show there.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from alpamayo_node.contracts import KvShape
from alpamayo_node.contracts import KvSource
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import SelfTestError
from alpamayo_node.model.action_proj import fourier_frequencies
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.reference import Array
from alpamayo_node.model.reference import plain_in_proj
from alpamayo_node.model.reference import plain_layer

TOLERANCES = {'bfloat16': 2e-2, 'float32': 1e-4}
"""Largest accepted relative difference of a layer, by precision."""
_IN_PROJ_TOLERANCE = 1e-3
_MAX_ROWS = 48
_MAX_LEFT_PAD = 5
_SEED = 20_260_804
_T = 0.3


class NetworkUnderTest(Protocol):
    """What a backend's network offers to be tested by."""

    def in_proj(self, x: torch.Tensor, t: float) -> torch.Tensor:
        """(N, A) and time -> (N, H) tokens, float32."""

    def run_layer(self, i_layer: int, tokens: torch.Tensor) -> torch.Tensor:
        """(N, H) -> (N, H) float32, on the context that was loaded."""

    def velocity(self, x: torch.Tensor, t: float, should_stop: Callable[[], bool]) -> torch.Tensor:
        """(N, A) and time -> (N, A) float32, on the context that was loaded."""


class SyntheticContext:
    """Random keys and values that depend on nothing but the shape; hidden rows hold NaN."""

    def __init__(self, checkpoint: Checkpoint, max_rows: int, *, is_poison: bool = False) -> None:
        """
        Choose a shape that fits.

        :param checkpoint: of the expert that will load it
        :param max_rows: largest context of that expert
        :param is_poison: whether all rows are visible, and NaN
        """
        self._is_poison = is_poison
        text, n_rows = checkpoint.config.expert, min(max_rows, _MAX_ROWS)
        self.shape = KvShape(
            n_layers=text.n_layers,
            n_kv_heads=text.n_kv_heads,
            head_dim=text.head_dim,
            n_rows=n_rows,
            left_pad=0 if is_poison else min(n_rows - 1, _MAX_LEFT_PAD),
            rope_delta=-n_rows // 2,
            dtype='bfloat16',
        )

    def layer(self, i_layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Draw one layer.

        :param i_layer: index of the layer
        :return: keys and values, (G, S, D) bfloat16
        """
        shape = self.shape
        generator = torch.Generator().manual_seed(_SEED + i_layer)
        both = torch.randn(
            (2, shape.n_kv_heads, shape.n_rows, shape.head_dim), generator=generator
        ).to(torch.bfloat16)
        both[:, :, : shape.n_rows if self._is_poison else shape.left_pad] = torch.nan
        return both[0], both[1]

    def close(self) -> None:
        """Do nothing: there is no file behind it."""


def run_self_test(
    network: NetworkUnderTest,
    checkpoint: Checkpoint,
    *,
    max_rows: int,
    tolerance: float,
    buffer_rounding: str,
    load: Callable[[KvSource], None],
    should_stop: Callable[[], bool],
) -> str:
    """
    Warm up and compare; leaves the synthetic context in the cache.

    :param network: loaded from the checkpoint
    :param checkpoint: read again for the plain form
    :param max_rows: largest context
    :param tolerance: largest accepted relative difference of a layer
    :param buffer_rounding: see `buffers`
    :param load: fills the network's cache from a context
    :param should_stop: polled between layers
    :return: one line that says what was compared and how well it agreed
    :raises SelfTestError: it did not agree
    :raises Cancelled: `should_stop` became true
    """
    load(SyntheticContext(checkpoint, max_rows, is_poison=True))
    context = SyntheticContext(checkpoint, max_rows)
    load(context)
    generator = torch.Generator().manual_seed(_SEED - 1)
    config = checkpoint.config
    x = torch.randn((config.action_space.n_waypoints, 2), generator=generator)
    velocity = network.velocity(x, _T, should_stop)
    if not bool(torch.isfinite(velocity).all()):
        raise SelfTestError('self-test: the network gives velocities that are not finite')
    in_proj = _compare_in_proj(network, checkpoint, x, buffer_rounding)
    tokens = torch.randn((len(x), config.expert.hidden), generator=generator)
    n_layers = config.expert.n_layers
    layers = {}
    for i_layer in sorted({0, n_layers // 2, n_layers - 1}):
        if should_stop():
            raise Cancelled('stopped in the self-test')
        layers[i_layer] = _compare_layer(network, checkpoint, context, i_layer, tokens)
    _require_close('the in-projection', in_proj, _IN_PROJ_TOLERANCE)
    for i_layer, difference in layers.items():
        _require_close(f'layer {i_layer}', difference, tolerance)
    worst = max(layers.values())
    return (
        f'layers {", ".join(map(str, layers))} of {n_layers} agree with the plain form within '
        f'{worst:.1e} (accepted: {tolerance:.0e}), the in-projection within '
        f'{in_proj:.1e}'
    )


def _compare_in_proj(
    network: NetworkUnderTest, checkpoint: Checkpoint, x: torch.Tensor, buffer_rounding: str
) -> float:
    in_proj = checkpoint.config.in_proj
    freqs = fourier_frequencies(in_proj.n_freqs, in_proj.max_freq, buffer_rounding)
    expected = plain_in_proj(checkpoint, x.double().numpy(), _T, freqs.double().numpy())
    return _relative(network.in_proj(x, _T).double().numpy() - expected, expected)


def _compare_layer(
    network: NetworkUnderTest,
    checkpoint: Checkpoint,
    context: SyntheticContext,
    i_layer: int,
    tokens: torch.Tensor,
) -> float:
    shape = context.shape
    keys, values = (part[:, shape.left_pad :].double().numpy() for part in context.layer(i_layer))
    x = tokens.double().numpy()
    first = shape.n_rows + shape.rope_delta
    expected = plain_layer(checkpoint, i_layer, x, (keys, values), first)
    got = network.run_layer(i_layer, tokens).double().numpy()
    return _relative(got - expected, expected - x)


def _relative(difference: Array, whole: Array) -> float:
    return float(np.linalg.norm(difference) / np.linalg.norm(whole))


def _require_close(what: str, difference: float, tolerance: float) -> None:
    # Not `difference > tolerance`, which NaN passes.
    if not difference <= tolerance:
        raise SelfTestError(
            f'self-test: {what} is off the plain form by {difference:.1e} of its norm, accepted '
            f'is {tolerance:.0e}; restart, and if it persists check memory and the build of torch'
        )
