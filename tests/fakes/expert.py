# SPDX-License-Identifier: Apache-2.0
"""
Experts whose behaviour is written in the test, and requests to feed them.

They implement the `Expert` interface fully, so what is tested around them is production code.
"""

from collections.abc import Callable
from dataclasses import replace
from threading import Event
import time

import numpy as np
from numpy.typing import NDArray

from alpamayo_node.contracts import ActionSpace
from alpamayo_node.contracts import ContextInfo
from alpamayo_node.contracts import ContextStatus
from alpamayo_node.contracts import EgoStart
from alpamayo_node.contracts import EulerStep
from alpamayo_node.contracts import ExpertInfo
from alpamayo_node.contracts import KvShape
from alpamayo_node.contracts import KvSource
from alpamayo_node.contracts import PlanRequest
from alpamayo_node.contracts import Transport
from alpamayo_node.errors import Cancelled

SPACE = ActionSpace(
    n_waypoints=64,
    dt_ns=100_000_000,
    accel_mean=0.02902694707164455,
    accel_std=0.6810426736454882,
    curvature_mean=0.0002692167976330542,
    curvature_std=0.026148280660833106,
    accel_bounds=(-9.8, 9.8),
    curvature_bounds=(-0.33, 0.33),
)
SHAPE = KvShape(
    n_layers=2,
    n_kv_heads=2,
    head_dim=32,
    n_rows=96,
    left_pad=0,
    rope_delta=-10,
    dtype='float32',
)
FINGERPRINT = 'sha256:' + '0' * 64


class ScriptedExpert:
    """Returns `action`, or what `on_sample` does instead; counts its calls."""

    def __init__(
        self,
        action: NDArray[np.float32] | None = None,
        on_sample: Callable[[], None] | None = None,
        on_self_test: Callable[[], None] | None = None,
        on_load: Callable[[], None] | None = None,
    ) -> None:
        self.action = np.zeros((64, 2), np.float32) if action is None else action
        self.on_sample = on_sample
        self.on_self_test = on_self_test
        self.on_load = on_load
        self.n_samples = 0
        self.noises: list[NDArray[np.float32]] = []
        self.is_closed = False

    @property
    def info(self) -> ExpertInfo:
        return ExpertInfo(
            backend='scripted',
            precision='float32',
            buffer_rounding='none',
            model_fingerprint=FINGERPRINT,
            n_layers=SHAPE.n_layers,
            n_kv_heads=SHAPE.n_kv_heads,
            head_dim=SHAPE.head_dim,
            max_rows=8128,
            action_space=SPACE,
        )

    def load(self, source: KvSource, should_stop: Callable[[], bool]) -> None:
        if self.on_load:
            self.on_load()

    def sample(
        self,
        noise: NDArray[np.float32],
        *,
        n_steps: int,
        should_stop: Callable[[], bool],
        on_step: Callable[[EulerStep], None] | None = None,
    ) -> NDArray[np.float32]:
        self.n_samples += 1
        self.noises.append(noise)
        if self.on_sample:
            self.on_sample()
        for i_step in range(n_steps):
            if should_stop():
                raise Cancelled('stopped between steps')
            if on_step:
                on_step(EulerStep(t=i_step / n_steps, x=noise, v=self.action - noise))
        return self.action

    def self_test(self, should_stop: Callable[[], bool]) -> str:
        if self.on_self_test:
            self.on_self_test()
        return 'scripted: nothing compared'

    def close(self) -> None:
        self.is_closed = True


class GatedExpert(ScriptedExpert):
    """Holds every sample until the test opens the gate, or the work is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = Event()
        self.gate = Event()

    def sample(
        self,
        noise: NDArray[np.float32],
        *,
        n_steps: int,
        should_stop: Callable[[], bool],
        on_step: Callable[[EulerStep], None] | None = None,
    ) -> NDArray[np.float32]:
        self.has_begun.set()
        while not self.gate.is_set():
            if should_stop():
                raise Cancelled('stopped at the gate')
            time.sleep(0.001)
        return super().sample(noise, n_steps=n_steps, should_stop=should_stop, on_step=on_step)


class EmptyStore:
    """Opens any context: the scripted experts never read a row."""

    def open(self, context: ContextInfo) -> KvSource:
        return EmptySource(context.shape)


class EmptySource:
    def __init__(self, shape: KvShape) -> None:
        self.shape = shape

    def layer(self, i_layer: int) -> tuple[object, object]:
        raise AssertionError(f'layer {i_layer} was read')

    def close(self) -> None:
        pass


def make_context(**changes: object) -> ContextInfo:
    context = ContextInfo(
        context_id='drive-1',
        generation=1,
        t0_ns=1_700_000_000_000_000_000,
        frame_id='map',
        status=ContextStatus.READY,
        transport=Transport.FILE,
        location='drive-1.safetensors',
        shape=SHAPE,
        model_fingerprint=FINGERPRINT,
        prompt_fingerprint='test',
        digest='',
        seed=None,
        reasoning='',
        history=(),
    )
    return replace(context, **changes)


def make_request(speed_mps: float = 10.0, **changes: object) -> PlanRequest:
    context = make_context()
    start = EgoStart(
        t0_ns=context.t0_ns,
        frame_id='map',
        position_m=(100.0, 200.0, 3.0),
        orientation_xyzw=(0.0, 0.0, 0.0, 1.0),
        speed_mps=speed_mps,
        speed_from_positions_mps=speed_mps,
        speed_from_twist_mps=speed_mps,
    )
    request = PlanRequest(
        context=context, start=start, seed=7, n_steps=10, n_samples=1, temperature=1.0
    )
    return replace(request, **changes)
