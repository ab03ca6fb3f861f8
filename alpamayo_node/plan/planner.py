# SPDX-License-Identifier: Apache-2.0
"""
From a request to judged plans: the whole pipeline on one screen.

    KV cache -> expert -> normalised action -> waypoints -> adjustments -> gate

Knows neither ROS nor the hardware: the expert and the store enter as interfaces. The same request
gives the same plan, bit for bit, on the same backend.
"""

from collections.abc import Callable
from contextlib import closing
import time

from alpamayo_node.contracts import EulerStep
from alpamayo_node.contracts import Expert
from alpamayo_node.contracts import ExpertInfo
from alpamayo_node.contracts import KvStore
from alpamayo_node.contracts import Plan
from alpamayo_node.contracts import PlanRequest
from alpamayo_node.contracts import StageTimes
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.finish import finish
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.noise import draw_noise


class Planner:
    """Plans with one expert; used by one thread at a time."""

    def __init__(
        self,
        expert: Expert,
        store: KvStore,
        *,
        adjust_limits: AdjustLimits,
        gate_limits: GateLimits,
    ) -> None:
        self._expert = expert
        self._store = store
        self._adjust_limits = adjust_limits
        self._gate_limits = gate_limits

    @property
    def info(self) -> ExpertInfo:
        """What the expert is."""
        return self._expert.info

    def plan(
        self,
        request: PlanRequest,
        should_stop: Callable[[], bool],
        *,
        queue_s: float = 0.0,
        on_step: Callable[[int, EulerStep], None] | None = None,
    ) -> tuple[Plan, ...]:
        """
        Sample and judge `request.n_samples` plans.

        :param should_stop: polled during long work
        :param queue_s: how long the request waited, for the record
        :param on_step: receives the sample's index and each Euler step
        :return: one plan per sample, valid or not
        :raises Refusal: the context cannot be used
        :raises Cancelled: `should_stop` became true
        :raises BackendError: the expert failed
        """
        began_s = time.perf_counter()
        with closing(self._store.open(request.context)) as source:
            self._expert.load(source, should_stop)
        times = StageTimes(queue_s=queue_s, load_s=time.perf_counter() - began_s)
        return tuple(
            self._sample(request, i_sample, times, should_stop, on_step)
            for i_sample in range(request.n_samples)
        )

    def close(self) -> None:
        """Release the expert."""
        self._expert.close()

    def _sample(
        self,
        request: PlanRequest,
        i_sample: int,
        times: StageTimes,
        should_stop: Callable[[], bool],
        on_step: Callable[[int, EulerStep], None] | None,
    ) -> Plan:
        space = self._expert.info.action_space
        noise = draw_noise(
            request.seed, request.context.t0_ns, i_sample, space.n_waypoints, request.temperature
        )
        began_s = time.perf_counter()
        action = self._expert.sample(
            noise,
            n_steps=request.n_steps,
            should_stop=should_stop,
            on_step=(lambda step: on_step(i_sample, step)) if on_step else None,
        )
        sampled_s = time.perf_counter()
        trajectory, reasons, adjustments = finish(
            action, request.start, space, self._adjust_limits, self._gate_limits
        )
        return Plan(
            request=request,
            i_sample=i_sample,
            noise=noise,
            action=action,
            trajectory=trajectory,
            reasons=reasons,
            adjustments=adjustments,
            times=StageTimes(
                queue_s=times.queue_s,
                load_s=times.load_s,
                sample_s=sampled_s - began_s,
                finish_s=time.perf_counter() - sampled_s,
            ),
        )
