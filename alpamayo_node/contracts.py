# SPDX-License-Identifier: Apache-2.0
"""
The plain data that crosses layers, and the one interface behind which a chip can stand.

Nothing here knows ROS, torch or ttnn. Times are integer nanoseconds of the planner's clock.

Frames: the *fixed* frame (map or odom) is where ego poses and published plans live; the *ego*
frame at t0 has x forward, y left, z up and its origin on the ground under the rear axle.
Axes: N waypoints (64), A action channels (2: acceleration, curvature), S cache rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from enum import Enum
from typing import Any
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.errors import Reason

NS_PER_S = 1_000_000_000


class ContextStatus(Enum):
    """How far the text model came with a context."""

    READY = 'ready'
    INCOMPLETE = 'incomplete'
    ABORTED = 'aborted'


class Transport(Enum):
    """How the KV cache travels from the text model to the planner."""

    FILE = 'file'


@dataclass(frozen=True)
class KvShape:
    """
    Extent of a KV cache: what a planner must know to refuse one before touching it.

    Rows [left_pad, n_rows) of each layer are visible; rows [0, left_pad) are prompt padding.
    """

    n_layers: int
    n_kv_heads: int
    head_dim: int
    n_rows: int
    """S: rows written by the text model, padding included; the last is `<|traj_future_start|>`."""
    left_pad: int
    rope_delta: int
    """Rope position minus row index for tokens after the prompt; 0 or negative."""
    dtype: str
    """'bfloat16' or 'float32'."""


@dataclass(frozen=True)
class PoseSample:
    """One stamped ego pose in the fixed frame."""

    stamp_ns: int
    position_m: tuple[float, float, float]
    orientation_xyzw: tuple[float, float, float, float]
    speed_mps: float | None
    """Longitudinal speed, forward positive; None where the source gives no twist."""


@dataclass(frozen=True)
class ContextInfo:
    """What the text model says about one context: `alpamayo_msgs/VlmContext` without ROS."""

    context_id: str
    generation: int
    t0_ns: int
    frame_id: str
    status: ContextStatus
    transport: Transport
    location: str
    """Plain file name inside the planner's context directory."""
    shape: KvShape
    model_fingerprint: str
    prompt_fingerprint: str
    digest: str
    """'sha256:<hex>' over the tensor bytes, or '' for none."""
    seed: int | None
    reasoning: str
    history: tuple[PoseSample, ...]
    """Oldest first; empty when the planner is to use odometry."""


class KvSource(Protocol):
    """An opened KV cache, ready to be read layer by layer."""

    @property
    def shape(self) -> KvShape:
        """Extent of the cache."""

    def layer(self, i_layer: int) -> tuple[Any, Any]:
        """
        Read one layer.

        :return: key and value, torch tensors (n_kv_heads, S, head_dim); keys carry their rope
        :raises Refusal: the layer cannot be read
        """

    def close(self) -> None:
        """Let go of the cache; safe to call twice."""


class KvStore(Protocol):
    """Where announced caches are found."""

    def open(self, context: ContextInfo) -> KvSource:
        """
        Open the cache that a context announces, after checking it against the announcement.

        :raises Refusal: absent, damaged, or not what was announced
        """


@dataclass(frozen=True)
class ActionSpace:
    """
    How normalised actions become physical ones, and how they are integrated.

    `acceleration = a * accel_std + accel_mean` in m/s², curvature alike in 1/m.
    """

    n_waypoints: int
    dt_ns: int
    accel_mean: float
    accel_std: float
    curvature_mean: float
    curvature_std: float
    accel_bounds: tuple[float, float]
    curvature_bounds: tuple[float, float]


@dataclass(frozen=True)
class ExpertInfo:
    """What a loaded expert is; part of every published plan."""

    backend: str
    precision: str
    buffer_rounding: str
    """'bf16' as the released model runs, or 'none'."""
    model_fingerprint: str
    n_layers: int
    n_kv_heads: int
    head_dim: int
    max_rows: int
    """Largest S that fits the cache beside the expert's own rows."""
    action_space: ActionSpace


@dataclass(frozen=True)
class EulerStep:
    """One recorded step: the point and the velocity taken there."""

    t: float
    x: NDArray[np.float32]
    """(N, A) before the step."""
    v: NDArray[np.float32]
    """(N, A) velocity at (x, t)."""


class Expert(Protocol):
    """
    The action expert on some hardware. One thread owns it; no method is re-entrant.

    Velocity fields are sampled from t = 0 (noise) to t = 1 (action).
    """

    @property
    def info(self) -> ExpertInfo:
        """What was loaded."""

    def load(self, source: KvSource, should_stop: Callable[[], bool]) -> None:
        """
        Fill the context's rows of the cache.

        :raises Refusal: the cache does not fit this expert
        :raises Cancelled: `should_stop` became true
        """

    def sample(
        self,
        noise: NDArray[np.float32],
        *,
        n_steps: int,
        should_stop: Callable[[], bool],
        on_step: Callable[[EulerStep], None] | None = None,
    ) -> NDArray[np.float32]:
        """
        Carry noise to a normalised action, attending to the loaded context.

        :param noise: (N, A) float32; left unchanged
        :return: (N, A) float32
        :raises Cancelled: `should_stop` became true
        :raises BackendError: the hardware failed
        """

    def self_test(self, should_stop: Callable[[], bool]) -> str:
        """
        Warm up, and prove on a synthetic context that the backend computes what it must.

        :return: one line that says what was compared and how well it agreed
        :raises SelfTestError: it did not
        """

    def close(self) -> None:
        """Release everything; safe to call twice."""


@dataclass(frozen=True)
class Finding:
    """One reason against a plan, or one adjustment that was made to it."""

    reason: Reason
    text: str


@dataclass(frozen=True)
class EgoStart:
    """Where and how fast the ego vehicle is at t0."""

    t0_ns: int
    frame_id: str
    position_m: tuple[float, float, float]
    orientation_xyzw: tuple[float, float, float, float]
    speed_mps: float
    """v0, the speed that the plan starts from."""
    speed_from_positions_mps: float
    speed_from_twist_mps: float | None


@dataclass(frozen=True)
class Trajectory:
    """
    Waypoints in the ego frame at t0; index i is the instant t0 + (i + 1) dt.

    All arrays are (N,); numbers are float64.
    """

    time_from_start_ns: NDArray[np.int64]
    x_m: NDArray[np.float64]
    y_m: NDArray[np.float64]
    heading_rad: NDArray[np.float64]
    speed_mps: NDArray[np.float64]
    accel_mps2: NDArray[np.float64]
    """Acceleration over the interval that ends at the waypoint."""
    curvature_1pm: NDArray[np.float64]
    """Curvature over the interval that ends at the waypoint."""

    @property
    def heading_rate_rps(self) -> NDArray[np.float64]:
        """Speed times curvature at each waypoint, rad/s."""
        return self.speed_mps * self.curvature_1pm


@dataclass(frozen=True)
class PlanRequest:
    """Everything that one plan depends on."""

    context: ContextInfo
    start: EgoStart
    seed: int
    n_steps: int
    n_samples: int
    temperature: float


@dataclass(frozen=True)
class StageTimes:
    """Wall time of the stages of one plan, seconds of a steady clock."""

    queue_s: float = 0.0
    load_s: float = 0.0
    sample_s: float = 0.0
    finish_s: float = 0.0
    """Integration and gate."""


@dataclass(frozen=True)
class Plan:
    """One sampled trajectory, judged."""

    request: PlanRequest
    i_sample: int
    noise: NDArray[np.float32]
    action: NDArray[np.float32]
    """(N, A) float32, normalised, as sampled."""
    trajectory: Trajectory
    """Waypoints after the adjustments, in the ego frame at t0."""
    reasons: tuple[Finding, ...] = ()
    """Why the plan is not valid; empty for a valid plan."""
    adjustments: tuple[Finding, ...] = ()
    """What was changed between the sampled action and the waypoints."""
    times: StageTimes = field(default_factory=StageTimes)

    @property
    def is_valid(self) -> bool:
        """Whether nothing speaks against following the plan."""
        return not self.reasons
