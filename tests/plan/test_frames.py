# SPDX-License-Identifier: Apache-2.0
import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from alpamayo_node.contracts import EgoStart
from alpamayo_node.plan.frames import conjugate
from alpamayo_node.plan.frames import is_rotation
from alpamayo_node.plan.frames import multiply
from alpamayo_node.plan.frames import normalised
from alpamayo_node.plan.frames import rotate
from alpamayo_node.plan.frames import rotation_angles
from alpamayo_node.plan.frames import slerp
from alpamayo_node.plan.frames import waypoints_in_fixed_frame
from alpamayo_node.plan.frames import yaw_quaternions
from alpamayo_node.plan.frames import yaws_of
from alpamayo_node.plan.unicycle import integrate
from tests.plan.rotations import matrix_of
from tests.plan.rotations import quaternion_of

SETTINGS = settings(max_examples=50, deadline=None)
angles = st.floats(-math.pi, math.pi)
poses = st.tuples(angles, st.floats(-1.5, 1.5), angles)


@SETTINGS
@given(poses, poses)
def test_multiply_is_the_product_of_the_matrices(left: tuple, right: tuple) -> None:
    product = multiply(quaternion_of(*left), quaternion_of(*right))
    expected = matrix_of(*left) @ matrix_of(*right)
    np.testing.assert_allclose(rotate(product, np.eye(3)).T, expected, atol=1e-12)


@SETTINGS
@given(poses)
def test_rotate_is_the_product_with_the_matrix_and_conjugate_undoes_it(pose: tuple) -> None:
    vectors = np.array([[1.0, 2.0, 3.0], [-4.0, 0.5, 1e6]])
    turned = rotate(quaternion_of(*pose), vectors)
    np.testing.assert_allclose(turned, vectors @ matrix_of(*pose).T, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(
        rotate(conjugate(quaternion_of(*pose)), turned), vectors, rtol=1e-12, atol=1e-9
    )


@SETTINGS
@given(poses)
def test_yaws_of_is_the_direction_of_the_x_axis(pose: tuple) -> None:
    x_axis = matrix_of(*pose)[:, 0]
    expected = math.atan2(x_axis[1], x_axis[0])
    difference = float(yaws_of(quaternion_of(*pose))) - expected
    assert math.sin(difference) == pytest.approx(0.0, abs=1e-10)
    assert math.cos(difference) > 0


@SETTINGS
@given(angles)
def test_yaw_quaternions_and_yaws_of_are_inverse(yaw_rad: float) -> None:
    got = yaws_of(yaw_quaternions(np.array([yaw_rad])))
    assert math.sin(float(got[0]) - yaw_rad) == pytest.approx(0.0, abs=1e-12)


def test_yaw_quaternions_turn_left() -> None:
    left = yaw_quaternions(np.array(math.pi / 2))
    np.testing.assert_allclose(rotate(left, np.array([1.0, 0, 0])), [0, 1, 0], atol=1e-15)


@SETTINGS
@given(poses, angles, st.floats(-0.2, 1.2), st.sampled_from([1.0, -1.0]))
def test_slerp_turns_evenly_about_one_axis(
    pose: tuple, turn_rad: float, fraction: float, sign: float
) -> None:
    # either sign of a quaternion is the same rotation; half a turn has no short way
    turn_rad *= 0.99
    start = quaternion_of(*pose)
    end = multiply(start, yaw_quaternions(np.array(turn_rad)))
    expected = multiply(start, yaw_quaternions(np.array(fraction * turn_rad)))
    got = slerp(start[None], sign * end[None], np.array([fraction]))[0]
    np.testing.assert_allclose(rotate(got, np.eye(3)), rotate(expected, np.eye(3)), atol=1e-9)


@pytest.mark.parametrize('turn_rad', [0.0, 1e-12, 1e-9, 0.9e-6, 1.1e-6, 1e-4])
def test_slerp_is_accurate_for_tiny_turns(turn_rad: float) -> None:
    end = yaw_quaternions(np.array([turn_rad]))
    got = slerp(yaw_quaternions(np.array([0.0])), end, np.array([0.25]))
    assert float(yaws_of(got)[0]) == pytest.approx(0.25 * turn_rad, rel=1e-9, abs=1e-18)


def test_rotation_angles_does_not_depend_on_sign_or_axis() -> None:
    turn = quaternion_of(0.0, 0.0, 0.3)
    assert rotation_angles(turn) == pytest.approx(0.3)
    assert rotation_angles(-turn) == pytest.approx(0.3)
    assert rotation_angles(quaternion_of(0.0, 0.3, 0.0)) == pytest.approx(0.3)


def test_normalised_has_norm_one() -> None:
    np.testing.assert_allclose(normalised(np.array([[0, 0, 3.0, 4.0]])), [[0, 0, 0.6, 0.8]])


@pytest.mark.parametrize(
    ('quaternion', 'expected'),
    [
        ((0, 0, 0, 1.0), True),
        ((0, 0, 0, 1.0009), True),
        ((0, 0, 0, 1.0011), False),
        ((0, 0, 0, 0.998), False),
        ((0, 0, 0, 0.0), False),
        ((math.nan, 0, 0, 1), False),
        ((math.inf, 0, 0, 1), False),
        ((1e300, 0, 0, 1), False),
    ],
)
def test_is_rotation_knows_unit_quaternions(quaternion: tuple, expected: bool) -> None:
    assert is_rotation(quaternion) is expected


def start_at(position_m: tuple, pose: tuple) -> EgoStart:
    return EgoStart(
        t0_ns=0,
        frame_id='map',
        position_m=position_m,
        orientation_xyzw=tuple(quaternion_of(*pose)),
        speed_mps=10.0,
        speed_from_positions_mps=10.0,
        speed_from_twist_mps=None,
    )


@SETTINGS
@given(poses)
def test_waypoints_in_fixed_frame_equal_the_matrix_product(pose: tuple) -> None:
    trajectory = integrate(np.linspace(-1, 1, 64), np.full(64, 0.03), 10.0, 100_000_000)
    positions_m, orientations = waypoints_in_fixed_frame(
        trajectory, start_at((500_000.0, 4_000_000.0, 120.0), pose)
    )
    rotation = matrix_of(*pose)
    in_ego_m = np.stack([trajectory.x_m, trajectory.y_m, np.zeros(64)], 1)
    expected_m = np.array([500_000.0, 4_000_000.0, 120.0]) + in_ego_m @ rotation.T
    np.testing.assert_allclose(positions_m, expected_m, atol=2e-9, rtol=0)
    np.testing.assert_allclose((orientations**2).sum(axis=1), 1.0, atol=1e-14)
    for i in (0, 31, 63):
        c, s = np.cos(trajectory.heading_rad[i]), np.sin(trajectory.heading_rad[i])
        expected = rotation @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
        np.testing.assert_allclose(rotate(orientations[i], np.eye(3)).T, expected, atol=1e-12)


def test_waypoints_in_fixed_frame_of_a_vehicle_facing_north_drive_north() -> None:
    trajectory = integrate(np.zeros(64), np.zeros(64), 10.0, 100_000_000)
    positions_m, orientations = waypoints_in_fixed_frame(
        trajectory, start_at((100.0, 200.0, 3.0), (0.0, 0.0, math.pi / 2))
    )
    np.testing.assert_allclose(positions_m[63], [100.0, 264.0, 3.0], atol=1e-12)
    np.testing.assert_allclose(yaws_of(orientations), math.pi / 2, atol=1e-12)


def test_waypoints_in_fixed_frame_climb_with_the_road() -> None:
    # nose up by 0.1 rad is a negative rotation about y (left)
    trajectory = integrate(np.zeros(64), np.zeros(64), 10.0, 100_000_000)
    positions_m, _ = waypoints_in_fixed_frame(
        trajectory, start_at((0.0, 0.0, 0.0), (0.0, -0.1, 0.0))
    )
    np.testing.assert_allclose(positions_m[63], [64 * math.cos(0.1), 0, 64 * math.sin(0.1)])
