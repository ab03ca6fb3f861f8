# SPDX-License-Identifier: Apache-2.0
"""
Project noisy actions and time into the expert's tokens, and its hidden states back to velocities.

    (x, t) -> Fourier features -> [Linear, SiLU, RMSNorm] * n -> Linear -> LayerNorm -> tokens
    hidden -> Linear -> velocity

Features of a scalar s are sqrt(2) sin(2 pi f s) and sqrt(2) cos(2 pi f s), for frequencies f from
1 to the largest in equal ratios. A token's features are those of acceleration, curvature and t,
sines before cosines in each. SiLU comes before the norm. No position is added: it enters by rope.

Both projections run in float32 at every precision of the layers: they are 0.05 % of the work.

Axes: N waypoints, A action channels (2: acceleration, curvature; normalised).
Source: `models/action_in_proj.py` of lucamodica/alpamayo2 @746350a7.
"""

import math

import torch
from torch.nn import functional as F

from alpamayo_node.model.buffers import round_buffer
from alpamayo_node.model.checkpoint import IN_PROJ
from alpamayo_node.model.checkpoint import OUT_PROJ
from alpamayo_node.model.checkpoint import Checkpoint

_EPS = 1e-5


def fourier_frequencies(n_freqs: int, max_freq: float, rounding: str) -> torch.Tensor:
    """
    Frequencies from 1 to `max_freq` in equal ratios.

    :param n_freqs: how many, at least 2
    :param max_freq: the last one, cycles per unit
    :param rounding: of the constants, see `buffers`
    :return: (n_freqs,) float32
    :raises ConfigError: the rounding is unknown
    """
    exact = torch.logspace(0, math.log10(max_freq), n_freqs, dtype=torch.float64)
    return round_buffer(exact, rounding)


def fourier_features(s: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """
    Expand scalars into sines and cosines.

    :param s: (...) float32
    :param freqs: (K,) float32, cycles per unit of s
    :return: (..., 2 K) float32, all sines first
    """
    phase_rad = s[..., None] * freqs * 2 * torch.pi
    return torch.cat([phase_rad.sin(), phase_rad.cos()], dim=-1) * math.sqrt(2)


class ActionInProj:
    """From (x, t) to the tokens that enter the first layer."""

    def __init__(self, checkpoint: Checkpoint, *, buffer_rounding: str) -> None:
        """
        Read the projection's tensors.

        :param checkpoint: opened
        :param buffer_rounding: of the frequencies, see `buffers`
        :raises ConfigError: the rounding is unknown
        """
        in_proj = checkpoint.config.in_proj

        def read(name: str) -> torch.Tensor:
            return checkpoint.get(IN_PROJ + name).float()

        self._freqs = fourier_frequencies(in_proj.n_freqs, in_proj.max_freq, buffer_rounding)
        positions = range(0, 3 * in_proj.n_layers + 1, 3)
        self._linears = [
            (read(f'encoder.trunk.{i}.weight'), read(f'encoder.trunk.{i}.bias')) for i in positions
        ]
        self._norms = [read(f'encoder.trunk.{i - 1}.weight') for i in positions[1:]]
        self._layer_norm = (read('norm.weight'), read('norm.bias'))

    def __call__(self, x: torch.Tensor, t: float) -> torch.Tensor:
        """
        Make one token of each waypoint.

        :param x: (N, A) float32, normalised actions
        :param t: time of the flow, in [0, 1)
        :return: (N, hidden) float32
        """
        time_features = fourier_features(torch.tensor(t, dtype=torch.float32), self._freqs)
        features = fourier_features(x, self._freqs).flatten(1)
        h = torch.cat([features, time_features.expand(len(x), -1)], dim=1)
        h = F.linear(h, *self._linears[0])
        for norm, linear in zip(self._norms, self._linears[1:], strict=True):
            h = F.linear(F.rms_norm(F.silu(h), norm.shape, norm, _EPS), *linear)
        return F.layer_norm(h, h.shape[1:], *self._layer_norm, _EPS)


class ActionOutProj:
    """From the last hidden states to velocities."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """
        Read the projection's tensors.

        :param checkpoint: opened
        """
        self._weight = checkpoint.get(OUT_PROJ + 'weight').float()
        self._bias = checkpoint.get(OUT_PROJ + 'bias').float()

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """
        Project each token to a velocity.

        :param hidden: (N, hidden) float32, behind the final norm
        :return: (N, A) float32, normalised action per unit of flow time
        """
        return F.linear(hidden, self._weight, self._bias)
