# SPDX-License-Identifier: Apache-2.0
"""
Draw the start noise of one sample from nothing but numbers: seed, t0 and the sample's index.

The same three numbers give the same noise in any process, in any order, at any replay speed; no
generator is kept between calls.

Words: Philox4x64-10 with key (seed, t0 modulo 2^64). Block j = 1, 2, ... has the counter
(j, 0, 0, i_sample), least significant word first, and yields four words, two per waypoint.
Normals: the upper 53 bits of a waypoint's two words give u1 in (0, 1] and u2 in [0, 1); its
channels are sqrt(-2 ln u1) cos(2 pi u2) and sqrt(-2 ln u1) sin(2 pi u2), in float64, rounded to
float32, then multiplied by the temperature.
Another libm may differ in the last bit of float64, which the rounding hides but for about one
number in 10^8.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); Box and Muller (1958).
Only raw words are taken from numpy: its normal distribution may change between versions.
"""

import math

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.errors import ConfigError

_WORD = 1 << 64
_UNIT = 2.0**-53


def draw_noise(
    seed: int, t0_ns: int, i_sample: int, n_waypoints: int, temperature: float
) -> NDArray[np.float32]:
    """
    Draw independent standard normal numbers and scale them.

    :param seed: in [0, 2^64)
    :param t0_ns: instant that the plan starts from, in [-2^63, 2^63)
    :param i_sample: which sample of the same context, in [0, 2^64)
    :param n_waypoints: N, at least 1
    :param temperature: factor, finite and not negative; 0 gives zeros
    :return: (N, 2) float32
    :raises ConfigError: an argument is out of its range
    """
    _require_range('seed', seed, 0, _WORD)
    _require_range('t0_ns', t0_ns, -_WORD // 2, _WORD // 2)
    _require_range('i_sample', i_sample, 0, _WORD)
    _require_range('n_waypoints', n_waypoints, 1, 1 << 32)
    if not (math.isfinite(temperature) and temperature >= 0.0):
        raise ConfigError('temperature', temperature, 'must be finite and not negative')
    philox = np.random.Philox(
        key=np.array([seed, t0_ns % _WORD], np.uint64),
        counter=np.array([0, 0, 0, i_sample], np.uint64),
    )
    fractions = (philox.random_raw(2 * n_waypoints) >> np.uint64(11)).reshape(n_waypoints, 2)
    radius = np.sqrt(-2.0 * np.log((fractions[:, 0] + np.uint64(1)) * _UNIT))
    angle_rad = fractions[:, 1] * (2.0 * np.pi * _UNIT)
    normals = np.stack([radius * np.cos(angle_rad), radius * np.sin(angle_rad)], axis=1)
    noise: NDArray[np.float32] = normals.astype(np.float32) * np.float32(temperature)
    return noise


def _require_range(name: str, value: int, start: int, stop: int) -> None:
    if not start <= value < stop:
        raise ConfigError(name, value, f'must be in [{start}, {stop})')
