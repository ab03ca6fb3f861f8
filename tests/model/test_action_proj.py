# SPDX-License-Identifier: Apache-2.0
import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import torch

from alpamayo_node.model.action_proj import ActionInProj
from alpamayo_node.model.action_proj import ActionOutProj
from alpamayo_node.model.action_proj import fourier_features
from alpamayo_node.model.action_proj import fourier_frequencies
from alpamayo_node.model.checkpoint import OUT_PROJ
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.config import InProjConfig
from alpamayo_node.model.reference import plain_in_proj
from tests.model.builders import noise
from tests.model.builders import random_tensors
from tests.model.builders import tiny_config
from tests.model.builders import write_checkpoint

EXACT = [
    1,
    1.668101,
    2.782559,
    4.641589,
    7.742637,
    12.915497,
    21.544347,
    35.938137,
    59.948425,
    100,
]
ROUNDED = [1, 1.671875, 2.78125, 4.65625, 7.75, 12.9375, 21.5, 36, 60, 100]
R2 = math.sqrt(2)

# sqrt(2) sin(2 pi f s), then sqrt(2) cos(2 pi f s), computed in float64.
GOLDEN_FEATURES = [
    (
        0.5,
        'none',
        [
            0,
            -1.221547,
            0.892663,
            1.276597,
            -1.022862,
            0.371044,
            -1.400511,
            -0.273125,
            -0.228140,
            0,
        ],
        [
            *(-R2, 0.712617, -1.096883, -0.608522, 0.976602),
            *(-1.364671, 0.196391, 1.387589, 1.395691, R2),
        ],
    ),
    (
        0.5,
        'bf16',
        [0, -1.213011, 0.897168, 1.247225, -1, 0.275899, -R2, 0, 0, 0],
        [-R2, 0.727051, -1.093202, -0.666656, 1, -1.387040, 0, R2, R2, R2],
    ),
    (
        0.1,
        'bf16',
        [
            *(0.831254, 1.227052, 1.392189, 0.303079, -1.396802),
            *(1.361117, 1.144123, -0.831254, 0, 0),
        ],
        [
            *(1.144123, 0.703095, -0.248613, -1.381356, 0.221232),
            *(-0.383875, 0.831254, -1.144123, R2, R2),
        ],
    ),
    (0.0, 'none', [0] * 10, [R2] * 10),
    (0.0, 'bf16', [0] * 10, [R2] * 10),
]


@pytest.mark.parametrize(('rounding', 'expected'), [('none', EXACT), ('bf16', ROUNDED)])
def test_frequencies_match_golden_numbers(rounding: str, expected: list[float]) -> None:
    freqs = fourier_frequencies(10, 100.0, rounding)
    tolerance = 0 if rounding == 'bf16' else 1e-6
    np.testing.assert_allclose(freqs.numpy(), expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize(('s', 'rounding', 'sines', 'cosines'), GOLDEN_FEATURES)
def test_features_match_golden_numbers(
    s: float, rounding: str, sines: list[float], cosines: list[float]
) -> None:
    freqs = fourier_frequencies(10, 100.0, rounding)
    features = fourier_features(torch.tensor(s), freqs).numpy()
    # 1e-4: float32 angles of up to 314 rad.
    np.testing.assert_allclose(features, sines + cosines, rtol=0, atol=1e-4)


@given(st.floats(-5, 5, width=32), st.sampled_from(['none', 'bf16']))
def test_features_have_constant_length_and_odd_sines(s: float, rounding: str) -> None:
    freqs = fourier_frequencies(10, 100.0, rounding)
    features = fourier_features(torch.tensor(s), freqs)
    assert float(features @ features) == pytest.approx(20, abs=1e-4)
    mirrored = fourier_features(torch.tensor(-s), freqs)
    assert torch.equal(mirrored[:10], -features[:10])
    assert torch.equal(mirrored[10:], features[10:])


def test_features_of_one_return_to_the_start_where_frequencies_are_whole() -> None:
    freqs = torch.tensor([1.0, 36.0, 60.0, 100.0])
    features = fourier_features(torch.tensor(1.0), freqs)
    np.testing.assert_allclose(features.numpy(), [0] * 4 + [R2] * 4, rtol=0, atol=1e-4)


@pytest.mark.parametrize('n_layers', [1, 2, 3])
@pytest.mark.parametrize('rounding', ['none', 'bf16'])
def test_in_proj_equals_plain_form(n_layers: int, rounding: str, tmp_path: Path) -> None:
    sizes = InProjConfig(hidden=24, n_layers=n_layers, n_features=8, max_freq=10.0)
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, tiny_config(in_proj=sizes)))
    in_proj = ActionInProj(checkpoint, buffer_rounding=rounding)
    freqs = fourier_frequencies(4, 10.0, rounding).double().numpy()
    for t in (0.0, 0.3, 0.9):
        got = in_proj(torch.from_numpy(noise()), t).numpy()
        expected = plain_in_proj(checkpoint, noise().astype(np.float64), t, freqs)
        assert got.shape == (64, 64)
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)


def test_in_proj_treats_waypoints_alike_and_channels_differently(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, tiny_config()))
    in_proj = ActionInProj(checkpoint, buffer_rounding='bf16')
    x = torch.from_numpy(noise())
    tokens = in_proj(x, 0.4)
    assert torch.allclose(in_proj(x.flip(0), 0.4).flip(0), tokens, atol=1e-6)
    assert not torch.allclose(in_proj(x.flip(1), 0.4), tokens, atol=1e-2)
    assert not torch.allclose(in_proj(x, 0.5), tokens, atol=1e-2)


def test_in_proj_rounding_changes_tokens(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, tiny_config()))
    x = torch.from_numpy(noise())
    tokens = [ActionInProj(checkpoint, buffer_rounding=r)(x, 0.4) for r in ('none', 'bf16')]
    assert not torch.allclose(*tokens, atol=1e-3)


def test_out_proj_is_linear_with_bias(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_config())
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, tiny_config(), tensors))
    hidden = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    weight = tensors[OUT_PROJ + 'weight'].double().numpy()
    bias = tensors[OUT_PROJ + 'bias'].double().numpy()
    expected = hidden.double().numpy() @ weight.T + bias
    np.testing.assert_allclose(ActionOutProj(checkpoint)(hidden).numpy(), expected, atol=1e-5)
