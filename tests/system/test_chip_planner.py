# SPDX-License-Identifier: Apache-2.0
"""The planner on a chip: emulated, missing, or not even installed. Real processes, real DDS."""

from pathlib import Path
import signal

from alpamayo_msgs.msg import PlannedTrajectory
from alpamayo_msgs.msg import PlannerStatus
import numpy as np
from numpy.typing import NDArray
import pytest

from tests.system.command_line import command_line_plan
from tests.system.processes import Scene

pytestmark = [pytest.mark.ros, pytest.mark.slow]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EMULATED = (HERE / 'emulated_ttnn', ROOT)
BROKEN = (HERE / 'broken_ttnn',)
MAX_APART_M = 0.1


def chip_parameters(scene: Scene) -> dict[str, object]:
    return {
        'backend': 'ttnn',
        'model__max_rows': 320,
        'chip__cache_directory': scene.tmp_path / 'chip_cache',
        'python_path': EMULATED,
    }


def positions(plan: PlannedTrajectory) -> NDArray[np.float64]:
    points = [waypoint.pose.position for waypoint in plan.waypoints]
    return np.array([(point.x, point.y) for point in points])


def test_chip_planner_plans_like_the_cpu(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    planner = scene.planner(**chip_parameters(scene), chip__weights='bf16')
    scene.stand_in(count=3, send_history=True)
    scene.listener.until(lambda: len(scene.listener.plans) == 3)
    assert 'replays equal the recorded ops' in planner.output
    announced = {message.context_id: message for message in scene.listener.contexts}
    for plan in scene.listener.plans:
        assert plan.valid
        assert plan.backend == 'ttnn'
        message = announced[plan.context_id]
        expected = command_line_plan(scene, message, capsys, '--precision', 'float32')
        on_cpu = np.array([waypoint['position_m'][:2] for waypoint in expected['waypoints']])
        assert 0 < np.linalg.norm(positions(plan) - on_cpu, axis=1).max() < MAX_APART_M
    planner.signal(signal.SIGTERM)
    assert planner.wait() == 0
    assert 'Traceback' not in planner.output
    assert list((scene.tmp_path / 'chip_cache' / 'weights').iterdir())


@pytest.mark.skipif(Path('/dev/tenstorrent').exists(), reason='there is a chip here')
def test_chip_planner_without_a_chip_says_so_and_stays_up(scene: Scene) -> None:
    planner = scene.planner(**(chip_parameters(scene) | {'python_path': ()}))
    scene.listener.until(
        lambda: any('cannot be opened' in status.last_error for status in scene.listener.statuses)
    )
    status = scene.listener.fresh_status()
    assert status.state != PlannerStatus.STATE_ACTIVE
    assert planner.process.poll() is None
    planner.signal(signal.SIGINT)
    assert planner.wait() == 0


def test_cpu_planner_needs_no_ttnn(scene: Scene) -> None:
    scene.planner(python_path=BROKEN)
    scene.stand_in(count=1)
    scene.listener.until(lambda: len(scene.listener.plans) == 1)


def test_chip_planner_without_ttnn_says_so(scene: Scene) -> None:
    scene.planner(**(chip_parameters(scene) | {'python_path': BROKEN}))
    scene.listener.until(
        lambda: any(
            'there is no ttnn here' in status.last_error for status in scene.listener.statuses
        )
    )
