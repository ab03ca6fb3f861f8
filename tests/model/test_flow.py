# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from alpamayo_node.contracts import EulerStep
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.flow import integrate
from alpamayo_node.model.flow import time_grid
from tests.model.builders import noise


def test_time_grid_of_ten_steps_has_the_reference_bits() -> None:
    # linspace(0, 1, 11) in float32, printed to the last digit that tells bits apart.
    expected = [
        *(0.0, 0.10000000149, 0.20000000298, 0.30000001192, 0.40000000596, 0.5),
        *(0.60000002384, 0.69999998808, 0.80000001192, 0.89999997616, 1.0),
    ]
    assert time_grid(10).tolist() == np.array(expected, np.float32).tolist()


@pytest.mark.parametrize('n_steps', [1, 3, 7, 10, 33])
def test_time_grid_runs_from_zero_to_one(n_steps: int) -> None:
    grid = time_grid(n_steps)
    assert grid.dtype == np.float32
    assert len(grid) == n_steps + 1
    assert (grid[0], grid[-1]) == (0.0, 1.0)
    assert np.array_equal(grid, torch.linspace(0, 1, n_steps + 1).numpy())


@pytest.mark.parametrize('n_steps', [1, 5, 10])
def test_constant_field_adds_itself(n_steps: int) -> None:
    x0, c = noise(0), noise(1)
    # Each step rounds twice: 2 n half units of the last place of numbers below 8.
    result = integrate(lambda x, t: c, x0, n_steps)
    np.testing.assert_allclose(result, x0 + c, rtol=0, atol=2 * n_steps * 2.4e-7)
    assert result.dtype == np.float32


@pytest.mark.parametrize('n_steps', [1, 5, 10])
def test_decaying_field_shrinks_by_the_same_factor_each_step(n_steps: int) -> None:
    x0 = noise(0)
    result = integrate(lambda x, t: -x, x0, n_steps)
    expected = x0.astype(np.float64) * (1 - 1 / n_steps) ** n_steps
    np.testing.assert_allclose(result, expected, rtol=3e-6, atol=1e-7)


def test_velocity_is_taken_at_the_left_end_of_each_step() -> None:
    times: list[float] = []

    def velocity(x: np.ndarray, t: float) -> np.ndarray:
        times.append(t)
        return np.zeros_like(x)

    integrate(velocity, noise(), 10)
    assert times == time_grid(10)[:-1].tolist()


def test_record_holds_every_point_and_explains_the_result() -> None:
    steps: list[EulerStep] = []
    x0 = noise()
    result = integrate(lambda x, t: np.float32(t) - x, x0, 7, steps.append)
    assert np.array_equal(steps[0].x, x0)
    grid = time_grid(7)
    for i_step, step in enumerate(steps):
        following = steps[i_step + 1].x if i_step < 6 else result
        dt = grid[i_step + 1] - grid[i_step]
        assert np.array_equal(step.x + dt * step.v, following)
        assert step.t == grid[i_step]


def test_noise_is_left_unchanged() -> None:
    x0 = noise()
    before = x0.copy()
    steps: list[EulerStep] = []
    integrate(lambda x, t: x, x0, 3, steps.append)
    assert np.array_equal(x0, before)
    assert not np.shares_memory(steps[0].x, x0)


@pytest.mark.parametrize('n_steps', [0, -1])
def test_no_steps_are_refused(n_steps: int) -> None:
    with pytest.raises(ConfigError, match='n_steps'):
        integrate(lambda x, t: x, noise(), n_steps)
