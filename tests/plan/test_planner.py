# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from alpamayo_node.contracts import EulerStep
from alpamayo_node.errors import Cancelled
from alpamayo_node.errors import Reason
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.planner import Planner
from tests.fakes.expert import EmptyStore
from tests.fakes.expert import ScriptedExpert
from tests.fakes.expert import make_request


def planner_for(expert: ScriptedExpert) -> Planner:
    return Planner(expert, EmptyStore(), adjust_limits=AdjustLimits(), gate_limits=GateLimits())


def never() -> bool:
    return False


def test_planner_straight_action_gives_the_closed_form_waypoints() -> None:
    # Zero normalised action: the mean acceleration and curvature, from 10 m/s. End point from the
    # integration rule evaluated in float64 for these constants.
    (plan,) = planner_for(ScriptedExpert()).plan(make_request(10.0), never)
    assert plan.is_valid
    assert plan.trajectory.x_m[63] == pytest.approx(64.5912159, abs=1e-6)
    assert plan.trajectory.y_m[63] == pytest.approx(0.5616334, abs=1e-6)
    assert plan.trajectory.speed_mps[63] == pytest.approx(10.1857725, abs=1e-6)
    assert plan.trajectory.time_from_start_ns.tolist() == [
        (i + 1) * 100_000_000 for i in range(64)
    ]


def test_planner_samples_have_their_own_noise_and_the_same_context() -> None:
    expert = ScriptedExpert()
    loads: list[int] = []
    expert.on_load = lambda: loads.append(1)
    plans = planner_for(expert).plan(make_request(n_samples=3), never)
    assert [plan.i_sample for plan in plans] == [0, 1, 2]
    assert len(loads) == 1
    digests = {noise.tobytes() for noise in expert.noises}
    assert len(digests) == 3


def test_planner_same_request_draws_the_same_noise_and_another_seed_does_not() -> None:
    expert = ScriptedExpert()
    planner = planner_for(expert)
    for seed in (7, 7, 8):
        planner.plan(make_request(seed=seed), never)
    first, second, third = (noise.tobytes() for noise in expert.noises)
    assert first == second
    assert first != third


def test_planner_temperature_zero_starts_from_zero() -> None:
    expert = ScriptedExpert()
    planner_for(expert).plan(make_request(temperature=0.0), never)
    assert not expert.noises[0].any()


def test_planner_records_every_step_of_every_sample() -> None:
    steps: list[tuple[int, EulerStep]] = []
    planner_for(ScriptedExpert()).plan(
        make_request(n_samples=2, n_steps=5),
        never,
        on_step=lambda i_sample, step: steps.append((i_sample, step)),
    )
    assert [i for i, _ in steps] == [0] * 5 + [1] * 5
    assert [step.t for _, step in steps[:5]] == [0.0, 0.2, 0.4, 0.6, 0.8]


@pytest.mark.parametrize('where', [(0, 0), (31, 1), (63, 0)])
def test_planner_non_finite_action_is_never_valid(where: tuple[int, int]) -> None:
    action = np.zeros((64, 2), np.float32)
    action[where] = np.nan
    (plan,) = planner_for(ScriptedExpert(action)).plan(make_request(), never)
    assert not plan.is_valid
    assert Reason.NON_FINITE in {finding.reason for finding in plan.reasons}


def test_planner_cancelled_between_samples_stops() -> None:
    expert = ScriptedExpert()
    with pytest.raises(Cancelled):
        planner_for(expert).plan(make_request(n_samples=4), lambda: expert.n_samples >= 2)
    assert expert.n_samples == 2


def test_planner_times_each_stage() -> None:
    (plan,) = planner_for(ScriptedExpert()).plan(make_request(), never, queue_s=0.25)
    assert plan.times.queue_s == 0.25
    assert plan.times.sample_s > 0.0
    assert plan.times.finish_s > 0.0
