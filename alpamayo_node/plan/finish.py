# SPDX-License-Identifier: Apache-2.0
"""From a sampled action to judged waypoints: units, roll-out, adjustments, gate."""

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.contracts import ActionSpace
from alpamayo_node.contracts import EgoStart
from alpamayo_node.contracts import Finding
from alpamayo_node.contracts import Trajectory
from alpamayo_node.errors import BackendError
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.adjust import adjust
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.gate import judge
from alpamayo_node.plan.unicycle import denormalise
from alpamayo_node.plan.unicycle import integrate


def finish(
    action: NDArray[np.float32],
    start: EgoStart,
    space: ActionSpace,
    adjust_limits: AdjustLimits,
    gate_limits: GateLimits,
) -> tuple[Trajectory, tuple[Finding, ...], tuple[Finding, ...]]:
    """
    Make the plan that an action stands for, and judge it.

    :param action: (N, 2), normalised, as sampled; non-finite values end as a NON_FINITE reason
    :param start: where and how fast the plan starts
    :param space: what the action's numbers mean
    :return: waypoints after the adjustments, reasons against them, adjustments made
    :raises BackendError: the action does not have the shape of the action space
    """
    if action.shape != (space.n_waypoints, 2):
        expected = (space.n_waypoints, 2)
        raise BackendError(
            f'the backend sampled an action of shape {action.shape}, not {expected}'
        )
    raw = integrate(*denormalise(action, space), start.speed_mps, space.dt_ns)
    adjusted, adjustments = adjust(raw, start, adjust_limits)
    return adjusted, judge(raw, adjusted, start, gate_limits), adjustments
