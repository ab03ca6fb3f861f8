# SPDX-License-Identifier: Apache-2.0
"""
Say how the planner is: the heartbeat message, and the same in the form of `/diagnostics`.

Pure functions of a `Health` that the node fills in; they may run on any thread.
"""

from dataclasses import dataclass

from alpamayo_msgs.msg import Counter
from alpamayo_msgs.msg import PlannerStatus
from diagnostic_msgs.msg import DiagnosticArray
from diagnostic_msgs.msg import DiagnosticStatus
from diagnostic_msgs.msg import KeyValue

from alpamayo_node.contracts import ContextInfo
from alpamayo_node.contracts import ExpertInfo
from alpamayo_node.ros.convert import time_message

STATE_NAMES = {
    PlannerStatus.STATE_UNCONFIGURED: 'unconfigured',
    PlannerStatus.STATE_CONFIGURING: 'configuring',
    PlannerStatus.STATE_INACTIVE: 'inactive',
    PlannerStatus.STATE_ACTIVE: 'active',
    PlannerStatus.STATE_FAULTED: 'faulted',
    PlannerStatus.STATE_SHUTTING_DOWN: 'shutting down',
}
_LEVELS = {
    PlannerStatus.STATE_ACTIVE: DiagnosticStatus.OK,
    PlannerStatus.STATE_FAULTED: DiagnosticStatus.ERROR,
}


@dataclass(frozen=True)
class Last:
    """The newest of each kind of event."""

    context: ContextInfo | None = None
    planned: ContextInfo | None = None
    error: str = ''
    error_ns: int = 0


@dataclass(frozen=True)
class Health:
    """Everything that the status tells, at one instant."""

    now_ns: int
    frame_id: str
    state: int
    is_planning: bool
    activity: str
    epoch: int
    last: Last
    counters: tuple[tuple[str, int], ...]
    info: ExpertInfo | None


def status_message(health: Health) -> PlannerStatus:
    """Write the heartbeat."""
    message = PlannerStatus()
    message.header.stamp = time_message(health.now_ns)
    message.header.frame_id = health.frame_id
    message.state, message.planning = health.state, health.is_planning
    message.activity, message.epoch = health.activity, health.epoch
    last = health.last
    if last.context:
        message.last_context_id = last.context.context_id
        message.last_context_generation = last.context.generation
        message.last_context_t0 = time_message(last.context.t0_ns)
    if last.planned:
        message.last_plan_context_id = last.planned.context_id
        message.last_plan_generation = last.planned.generation
        message.last_plan_t0 = time_message(last.planned.t0_ns)
    message.counters = [Counter(name=name, count=count) for name, count in health.counters]
    message.last_error = last.error
    message.last_error_stamp = time_message(last.error_ns)
    if health.info:
        message.backend, message.precision = health.info.backend, health.info.precision
        message.model_fingerprint = health.info.model_fingerprint
    return message


def diagnostics_message(health: Health, node_name: str) -> DiagnosticArray:
    """Write the state for `/diagnostics`: OK only while active."""
    state = STATE_NAMES[health.state]
    values = {
        'state': state,
        'activity': health.activity,
        'epoch': str(health.epoch),
        'last context': health.last.context.context_id if health.last.context else '',
        'last plan': health.last.planned.context_id if health.last.planned else '',
        'last error': health.last.error,
        **{name: str(count) for name, count in health.counters},
    }
    faulted = health.state == PlannerStatus.STATE_FAULTED
    entry = DiagnosticStatus(
        level=_LEVELS.get(health.state, DiagnosticStatus.WARN),
        name=f'{node_name}: planner',
        message=f'{state}: {health.last.error}' if faulted else state,
        hardware_id=health.info.backend if health.info else '',
        values=[KeyValue(key=key, value=value) for key, value in values.items()],
    )
    message = DiagnosticArray(status=[entry])
    message.header.stamp = time_message(health.now_ns)
    return message
