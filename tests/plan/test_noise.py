# SPDX-License-Identifier: Apache-2.0
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from alpamayo_node.errors import ConfigError
from alpamayo_node.plan.noise import draw_noise

T0_NS = 1_700_000_000_000_000_000


def test_philox_known_answer() -> None:
    # Philox4x64-10 of Random123 (kat_vectors): counter and key all zero. numpy adds one to the
    # counter before each block, so the block of counter 0 follows the state of all ones.
    words = np.random.Philox(
        key=np.zeros(2, np.uint64), counter=np.full(4, 2**64 - 1, np.uint64)
    ).random_raw(4)
    assert [hex(int(word)) for word in words] == [
        '0x16554d9eca36314c',
        '0xdb20fe9d672d0fdc',
        '0xd7e772cee186176b',
        '0x7e68b68aec7ba23b',
    ]


def philox4x64(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds in plain integers, from the paper."""
    word = (1 << 64) - 1
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * counter[0], 1 << 64)
        high1, low1 = divmod(0xCA5A826395121157 * counter[2], 1 << 64)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B97F4A7C15) & word, (key[1] + 0xBB67AE8584CAA73B) & word]
    return counter


@pytest.mark.parametrize(
    ('seed', 't0_ns', 'i_sample'), [(0, 0, 0), (7, T0_NS, 3), (2**64 - 1, -5, 2**64 - 1)]
)
def test_noise_equals_the_documented_recipe_in_plain_python(
    seed: int, t0_ns: int, i_sample: int
) -> None:
    words = [
        word
        for block in (1, 2, 3)
        for word in philox4x64([block, 0, 0, i_sample], [seed, t0_ns % 2**64])
    ]
    expected = []
    for first, second in zip(words[0:10:2], words[1:10:2], strict=True):
        radius = math.sqrt(-2.0 * math.log(((first >> 11) + 1) / 2**53))
        angle = 2.0 * math.pi * (second >> 11) / 2**53
        expected.append((radius * math.cos(angle), radius * math.sin(angle)))
    noise = draw_noise(seed, t0_ns, i_sample, 5, 1.0)
    # float32 rounding of float64 numbers that agree to the last bit or two
    np.testing.assert_allclose(noise, expected, rtol=1.2e-7, atol=1e-12)


def test_noise_golden_values() -> None:
    # Recorded from this recipe; the test above holds the recipe itself.
    noise = draw_noise(7, T0_NS, 0, 64, 1.0)
    golden = np.array([[-1.0371504, 0.850971], [-0.22388926, -0.34122112]], np.float32)
    assert noise[:2].tolist() == golden.tolist()


def test_noise_is_float32_of_the_asked_shape() -> None:
    for n in (1, 2, 63, 64):
        noise = draw_noise(1, 2, 3, n, 1.0)
        assert noise.shape == (n, 2)
        assert noise.dtype == np.float32


def test_noise_of_fewer_waypoints_is_the_beginning_of_more() -> None:
    assert draw_noise(1, 2, 3, 5, 1.0).tolist() == draw_noise(1, 2, 3, 64, 1.0)[:5].tolist()


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    t0_ns=st.integers(-(2**63), 2**63 - 1),
    i_sample=st.integers(0, 2**64 - 1),
)
def test_noise_same_arguments_give_the_same_bits_and_any_other_do_not(
    seed: int, t0_ns: int, i_sample: int
) -> None:
    noise = draw_noise(seed, t0_ns, i_sample, 64, 1.0)
    assert np.isfinite(noise).all()
    assert noise.tobytes() == draw_noise(seed, t0_ns, i_sample, 64, 1.0).tobytes()
    others = [
        draw_noise(seed ^ 1, t0_ns, i_sample, 64, 1.0),
        draw_noise(seed, t0_ns ^ 1, i_sample, 64, 1.0),
        draw_noise(seed, t0_ns, i_sample ^ 1, 64, 1.0),
    ]
    for other in others:
        assert not (noise == other).any(axis=1).any()


def test_noise_is_standard_normal_and_uncorrelated() -> None:
    # 500 samples of 64 x 2 numbers; bounds are 5 standard errors.
    draws = np.stack([draw_noise(11, T0_NS, i, 64, 1.0) for i in range(500)]).astype(np.float64)
    n = draws.size
    assert abs(draws.mean()) < 5 / math.sqrt(n)
    assert abs(draws.var() - 1.0) < 5 * math.sqrt(2 / n)
    assert abs((draws**4).mean() - 3.0) < 5 * math.sqrt(96 / n)
    channels = draws.reshape(-1, 2)
    assert abs((channels[:, 0] * channels[:, 1]).mean()) < 5 / math.sqrt(n / 2)
    neighbours = (draws[:, 1:] * draws[:, :-1]).mean()
    assert abs(neighbours) < 5 / math.sqrt(n)
    between_samples = (draws[1:] * draws[:-1]).mean()
    assert abs(between_samples) < 5 / math.sqrt(n)


def test_noise_temperature_scales_in_float32() -> None:
    unit = draw_noise(7, T0_NS, 0, 64, 1.0)
    np.testing.assert_array_equal(draw_noise(7, T0_NS, 0, 64, 0.6), unit * np.float32(0.6))
    assert not draw_noise(7, T0_NS, 0, 64, 0.0).any()


def test_noise_leaves_the_global_generator_alone() -> None:
    before = np.random.get_state()[1].tobytes()
    draw_noise(7, T0_NS, 0, 64, 1.0)
    assert np.random.get_state()[1].tobytes() == before


@pytest.mark.parametrize(
    ('field', 'arguments'),
    [
        ('seed', (-1, 0, 0, 64, 1.0)),
        ('seed', (2**64, 0, 0, 64, 1.0)),
        ('t0_ns', (0, 2**63, 0, 64, 1.0)),
        ('t0_ns', (0, -(2**63) - 1, 0, 64, 1.0)),
        ('i_sample', (0, 0, -1, 64, 1.0)),
        ('n_waypoints', (0, 0, 0, 0, 1.0)),
        ('temperature', (0, 0, 0, 64, -0.1)),
        ('temperature', (0, 0, 0, 64, math.nan)),
        ('temperature', (0, 0, 0, 64, math.inf)),
    ],
)
def test_noise_argument_out_of_range_is_refused_by_name(
    field: str, arguments: tuple[int, int, int, int, float]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        draw_noise(*arguments)
    assert refusal.value.field == field
