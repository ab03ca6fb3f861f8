# SPDX-License-Identifier: Apache-2.0
"""
Draw a plan for viewers: a path and markers in the fixed frame.

Each marker keeps its namespace and id, so a new plan replaces the old one in place; nothing
flickers and nothing is left behind. Poses are in the fixed frame: a late viewer draws them where
they were planned.
"""

from alpamayo_msgs.msg import PlannedTrajectory
from geometry_msgs.msg import Point
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Path
from rclpy.duration import Duration
from std_msgs.msg import ColorRGBA
from std_msgs.msg import Header
from visualization_msgs.msg import Marker
from visualization_msgs.msg import MarkerArray

from alpamayo_node.contracts import NS_PER_S

NAMESPACE = 'alpamayo_plan'
LINE_ID = 0
START_ID = 1

_BLUE = ColorRGBA(r=0.0, g=0.45, b=0.7, a=0.9)
_ORANGE = ColorRGBA(r=0.9, g=0.6, b=0.0, a=0.9)
_LIFT_M = 0.05


def path_of(plan: PlannedTrajectory) -> Path:
    """
    Give the ego pose at t0 and all waypoints as stamped poses.

    :param plan: valid, with waypoints
    """
    path = Path(header=plan.header)
    path.poses = [PoseStamped(header=plan.header, pose=plan.ego_pose)]
    t0_ns = plan.header.stamp.sec * NS_PER_S + plan.header.stamp.nanosec
    for waypoint in plan.waypoints:
        since = waypoint.time_from_start
        stamp_ns = t0_ns + since.sec * NS_PER_S + since.nanosec
        header = Header(frame_id=plan.header.frame_id)
        header.stamp.sec, header.stamp.nanosec = divmod(stamp_ns, NS_PER_S)
        path.poses.append(PoseStamped(header=header, pose=waypoint.pose))
    return path


def markers_of(plan: PlannedTrajectory, *, lifetime_s: float, line_width_m: float) -> MarkerArray:
    """
    Draw the path as a ribbon and the start as an arrow.

    :param plan: valid, with waypoints
    :param lifetime_s: after which viewers drop them; 0: never
    :param line_width_m: of the ribbon
    """
    line = _marker(plan.header, LINE_ID, Marker.LINE_STRIP, lifetime_s)
    line.scale.x = line_width_m
    line.color = _BLUE
    line.points = [_lifted(plan.ego_pose.position)]
    line.points += [_lifted(waypoint.pose.position) for waypoint in plan.waypoints]
    start = _marker(plan.header, START_ID, Marker.ARROW, lifetime_s)
    start.pose = plan.ego_pose
    start.scale.x, start.scale.y, start.scale.z = 2.0, line_width_m, line_width_m
    start.color = _ORANGE
    return MarkerArray(markers=[line, start])


def clear_markers(frame_id: str) -> MarkerArray:
    """Remove everything that this node drew, whatever its age."""
    marker = Marker(action=Marker.DELETEALL)
    marker.header.frame_id = frame_id
    marker.pose.orientation.w = 1.0
    return MarkerArray(markers=[marker])


def _marker(header: Header, marker_id: int, kind: int, lifetime_s: float) -> Marker:
    marker = Marker(header=header, ns=NAMESPACE, id=marker_id, type=kind, action=Marker.ADD)
    marker.pose.orientation.w = 1.0
    marker.lifetime = Duration(nanoseconds=round(lifetime_s * NS_PER_S)).to_msg()
    return marker


def _lifted(point: Point) -> Point:
    return Point(x=point.x, y=point.y, z=point.z + _LIFT_M)
