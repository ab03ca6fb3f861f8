# SPDX-License-Identifier: Apache-2.0
import math

from alpamayo_msgs.msg import PlannedTrajectory
from nav_msgs.msg import Path
import numpy as np
import pytest
from visualization_msgs.msg import Marker
from visualization_msgs.msg import MarkerArray

from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.planner import Planner
from alpamayo_node.ros import convert
from alpamayo_node.ros import markers
from tests.fakes.expert import EmptyStore
from tests.fakes.expert import ScriptedExpert
from tests.fakes.expert import make_request

pytestmark = pytest.mark.ros


def message(speed_mps: float = 10.0, action: np.ndarray | None = None) -> PlannedTrajectory:
    planner = Planner(
        ScriptedExpert(action),
        EmptyStore(),
        adjust_limits=AdjustLimits(),
        gate_limits=GateLimits(),
    )
    (plan,) = planner.plan(make_request(speed_mps), lambda: False)
    return convert.plan_to_message(plan, planner.info, age_ns=0)


def drawn(speed_mps: float = 10.0) -> MarkerArray:
    return markers.markers_of(message(speed_mps), lifetime_s=2.5, line_width_m=0.3)


def test_path_starts_at_t0_with_the_ego_pose_and_counts_up() -> None:
    plan = message()
    path: Path = markers.path_of(plan)
    assert len(path.poses) == 65
    assert path.header == plan.header
    assert path.poses[0].pose == plan.ego_pose
    stamps = [p.header.stamp.sec * 10**9 + p.header.stamp.nanosec for p in path.poses]
    t0_ns = plan.header.stamp.sec * 10**9 + plan.header.stamp.nanosec
    assert stamps == [t0_ns + i * 100_000_000 for i in range(65)]
    assert {p.header.frame_id for p in path.poses} == {'map'}


def test_markers_keep_their_names_from_plan_to_plan() -> None:
    names = [[(m.ns, m.id) for m in drawn(speed).markers] for speed in (10.0, 3.0)]
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0])


def test_markers_have_unit_quaternions_frame_lifetime_and_no_lock() -> None:
    for marker in drawn().markers:
        q = marker.pose.orientation
        assert math.hypot(q.x, q.y, q.z, q.w) == pytest.approx(1.0)
        assert marker.header.frame_id == 'map'
        assert (marker.lifetime.sec, marker.lifetime.nanosec) == (2, 500_000_000)
        assert not marker.frame_locked
        assert marker.color.a > 0.0


def test_markers_line_goes_through_every_waypoint() -> None:
    plan = message()
    line = drawn().markers[0]
    assert [(p.x, p.y) for p in line.points[1:]] == [
        (w.pose.position.x, w.pose.position.y) for w in plan.waypoints
    ]


def test_clear_markers_is_one_delete_all_that_viewers_accept() -> None:
    (marker,) = markers.clear_markers('map').markers
    assert marker.action == Marker.DELETEALL
    assert marker.ns == ''
    assert marker.header.frame_id == 'map'
    assert marker.pose.orientation.w == 1.0
