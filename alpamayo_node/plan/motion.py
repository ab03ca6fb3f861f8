# SPDX-License-Identifier: Apache-2.0
"""
How a simulated vehicle moves: its pose and speed as a pure function of time.

For stand-ins, demos and tests; nothing here plans. All motions are smooth enough for an ego
history to be accepted, and pass through the origin, heading along x, at time 0.
"""

from dataclasses import dataclass
from enum import Enum
import math

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import PoseSample
from alpamayo_node.errors import ConfigError

STOP_AND_GO_PERIOD_S = 16.0


class MotionKind(Enum):
    """Along which line, and at which speed."""

    STRAIGHT = 'straight'
    CIRCLE = 'circle'
    STOP_AND_GO = 'stop_and_go'
    STANDSTILL = 'standstill'


@dataclass(frozen=True)
class Motion:
    """One vehicle's motion in the fixed frame."""

    kind: MotionKind
    speed_mps: float
    """Of straight and circle, and the highest of stop and go."""
    radius_m: float = 50.0
    """Of the circle, which turns left."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.speed_mps <= 60.0:
            raise ConfigError('speed_mps', self.speed_mps, 'must be in [0, 60]')
        if not self.radius_m >= 1.0:
            raise ConfigError('radius_m', self.radius_m, 'must be at least 1')

    def at(self, time_s: float) -> tuple[float, float, float, float]:
        """
        Evaluate the motion.

        :return: x in m, y in m, heading in rad, speed in m/s
        """
        match self.kind:
            case MotionKind.STANDSTILL:
                return 0.0, 0.0, 0.0, 0.0
            case MotionKind.STRAIGHT:
                return self.speed_mps * time_s, 0.0, 0.0, self.speed_mps
            case MotionKind.CIRCLE:
                angle_rad = self.speed_mps / self.radius_m * time_s
                x_m = self.radius_m * math.sin(angle_rad)
                y_m = self.radius_m * (1.0 - math.cos(angle_rad))
                return x_m, y_m, angle_rad, self.speed_mps
            case MotionKind.STOP_AND_GO:
                # v = vmax (1 + cos w t) / 2: at full speed at time 0, standing for an instant
                # half a period later.
                rate = 2.0 * math.pi / STOP_AND_GO_PERIOD_S
                half_mps = 0.5 * self.speed_mps
                x_m = half_mps * (time_s + math.sin(rate * time_s) / rate)
                return x_m, 0.0, 0.0, half_mps * (1.0 + math.cos(rate * time_s))

    def sample(self, stamp_ns: int, epoch_ns: int) -> PoseSample:
        """
        Give the stamped pose at an instant.

        :param stamp_ns: the instant
        :param epoch_ns: instant of time 0
        """
        x_m, y_m, heading_rad, speed_mps = self.at((stamp_ns - epoch_ns) / NS_PER_S)
        half_rad = 0.5 * heading_rad
        return PoseSample(
            stamp_ns=stamp_ns,
            position_m=(x_m, y_m, 0.0),
            orientation_xyzw=(0.0, 0.0, math.sin(half_rad), math.cos(half_rad)),
            speed_mps=speed_mps,
        )

    def history(
        self, t0_ns: int, epoch_ns: int, rate_hz: float, length_s: float = 2.0
    ) -> tuple[PoseSample, ...]:
        """Give samples at a fixed rate over the time before t0, oldest first, the last at t0."""
        n_steps = round(length_s * rate_hz)
        step_ns = round(NS_PER_S / rate_hz)
        return tuple(self.sample(t0_ns - k * step_ns, epoch_ns) for k in range(n_steps, -1, -1))
