# SPDX-License-Identifier: Apache-2.0
"""
The one table of the planner's parameters: type, default, range, unit and meaning of each.

Declarations, checks, `params/planner.yaml` and docs/interface.md all follow this table, and a test
holds them together. Values take effect when the node is configured; a change while it is
configured is refused, so a plan never mixes two configurations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import re
from typing import Any

from rcl_interfaces.msg import FloatingPointRange
from rcl_interfaces.msg import IntegerRange
from rcl_interfaces.msg import ParameterDescriptor

from alpamayo_node.errors import ConfigError
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.history import HistoryLimits
from alpamayo_node.plan.history import SpeedSource
from alpamayo_node.ros.admission import AdmissionLimits

type Value = bool | int | float | str | list[str]

_KINDS = {
    bool: 'true or false',
    int: 'an integer',
    float: 'a number',
    str: 'a text',
    list: 'a list of texts',
}


@dataclass(frozen=True)
class Parameter:
    """One row of the table."""

    name: str
    default: Value
    description: str
    unit: str = ''
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    is_fixed: bool = False
    """Read once, when the node is made; ROS shows it as read-only."""

    def descriptor(self) -> ParameterDescriptor:
        """Describe the parameter to ROS tools: meaning, unit, range or choices."""
        text = self.description + (f' [{self.unit}]' if self.unit else '')
        if self.choices:
            text += f' One of: {", ".join(self.choices)}.'
        descriptor = ParameterDescriptor(name=self.name, description=text)
        # YAML writes 5 where 5.0 is meant: `check` converts it, rclpy would refuse it.
        descriptor.dynamic_typing = isinstance(self.default, float)
        descriptor.read_only = self.is_fixed
        if self.low is not None and self.high is not None:
            if isinstance(self.default, float):
                descriptor.floating_point_range = [
                    FloatingPointRange(from_value=self.low, to_value=self.high)
                ]
            else:
                descriptor.integer_range = [
                    IntegerRange(from_value=int(self.low), to_value=int(self.high), step=1)
                ]
        return descriptor

    def check(self, value: Any) -> Value:
        """
        Accept a value, or say why not.

        :return: the value; an integer given for a float is converted
        :raises ConfigError: wrong type, out of range, or none of the choices
        """
        if isinstance(self.default, float) and type(value) is int:
            value = float(value)
        if isinstance(self.default, list) and isinstance(value, list | tuple):
            value = list(value)
        is_of_type = type(value) is type(self.default)
        if not is_of_type or not self._is_in_range(value):
            raise ConfigError(self.name, value, self.rule())
        return value  # type: ignore[no-any-return]

    def rule(self) -> str:
        """Say what is accepted, for error messages."""
        if self.choices:
            return f'must be one of {", ".join(self.choices)}'
        kind = _KINDS[type(self.default)]
        if self.low is None or self.high is None:
            return f'must be {kind}'
        if isinstance(self.default, int):
            return f'must be {kind} in [{int(self.low)}, {int(self.high)}]'
        return f'must be {kind} in [{self.low:g}, {self.high:g}]'

    def _is_in_range(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.low is None or self.high is None:
            return True
        return bool(self.low <= value <= self.high)


_TOPIC = re.compile(r'(~/|/)?[A-Za-z_]\w*(/[A-Za-z_]\w*)*', re.ASCII)
_HISTORY = HistoryLimits()
_ADJUST = AdjustLimits()
_GATE = GateLimits()
_RELIABILITY = ('best_effort', 'reliable')


def _limit(name: str, value: float, high: float, unit: str, description: str) -> Parameter:
    return Parameter(name, value, description, unit, low=0.0, high=high)


TABLE: tuple[Parameter, ...] = (
    # start
    Parameter(
        'autostart',
        default=True,
        description='Configure and activate at start, without a manager.',
        is_fixed=True,
    ),
    Parameter(
        'backend',
        'torch',
        'Where the expert runs: a CPU, or a Tenstorrent chip.',
        choices=('torch', 'ttnn'),
    ),
    Parameter('checkpoint.directory', '', 'Folder of config.json and the safetensors files.'),
    Parameter(
        'model.buffer_rounding',
        'bf16',
        'Rounding of the constants that no checkpoint holds: as released, or none.',
        choices=('bf16', 'none'),
    ),
    Parameter('model.max_rows', 8128, 'Rows of the largest context.', 'rows', 64, 262_080),
    Parameter(
        'torch.precision',
        'bfloat16',
        'Number format of the network: as released, or the exact reference.',
        choices=('bfloat16', 'float32'),
    ),
    Parameter('torch.threads', 0, 'CPU threads; 0: torch decides.', '', 0, 1024),
    Parameter('chip.id', 0, "Which of the machine's chips.", '', 0, 31),
    Parameter(
        'chip.weights',
        'bfp8',
        'Format of the matrices: bf16, bfp8 or bfp4, or a list such as qkv=bfp8,gate=bfp4.',
    ),
    Parameter('chip.cache_dtype', 'bf16', 'Format of the KV cache.', choices=('bf16', 'bfp8')),
    Parameter(
        'chip.attention',
        'decode',
        'Kernel: split over the cache (decode), or over the queries (standard).',
        choices=('decode', 'standard'),
    ),
    Parameter(
        'chip.fold_heads',
        default=False,
        description='Standard attention: query heads of a group share the rows of one head.',
    ),
    Parameter(
        'chip.mask_dtype',
        'auto',
        'Format of the mask; auto: bfp4 for decode, bf16 for standard.',
        choices=('auto', 'bf16', 'bfp8', 'bfp4'),
    ),
    Parameter(
        'chip.k_chunk_rows',
        0,
        'Cache rows per step of attention, a power of two; 0: 128 for decode, 512 for standard.',
        'rows',
        0,
        4096,
    ),
    Parameter(
        'chip.q_chunk_rows',
        32,
        'Query rows per step of standard attention, a power of two.',
        'rows',
        32,
        1024,
    ),
    Parameter(
        'chip.tuned_matmul',
        default=True,
        description="Matmul programs computed for the chip's cores, or chosen by ttnn.",
    ),
    Parameter(
        'chip.trace',
        default=True,
        description='Record a step once and replay it, or issue each op.',
    ),
    Parameter(
        'chip.trace_region_bytes',
        128 << 20,
        'Device memory for the recorded step.',
        'bytes',
        1 << 20,
        4 << 30,
    ),
    Parameter(
        'chip.open_timeout_s',
        60.0,
        'For the chip to become free, and again to open.',
        's',
        0.1,
        3600.0,
    ),
    Parameter(
        'chip.operation_timeout_s',
        5.0,
        'After which ttnn takes an op for hung and ends the process.',
        's',
        0.1,
        3600.0,
    ),
    Parameter(
        'chip.cache_directory',
        '',
        "Of tilised weights and kernels; empty: alpamayo_node in the user's cache.",
    ),
    # frames
    Parameter('frames.fixed', 'map', 'Frame of ego poses and published plans.'),
    Parameter('frames.ego', 'base_link', 'Child frame of odometry: rear axle on the ground.'),
    # what is planned
    Parameter('context.directory', '', 'The one folder in which context files are looked for.'),
    Parameter('context.prompt_fingerprints', [''], 'Prompt layouts that are planned; [""]: any.'),
    _limit(
        'context.max_age_s',
        5.0,
        6.4,
        's',
        'Age of t0 beyond which nothing is planned or published.',
    ),
    _limit('context.max_future_s', 0.1, 1.0, 's', 'By how much t0 may lie ahead of the clock.'),
    Parameter(
        'sampling.seed',
        0,
        'Noise of a plan is a function of this, t0 and sample.',
        '',
        0,
        2**63 - 1,
    ),
    Parameter('sampling.n_steps', 10, 'Euler steps.', 'steps', 1, 100),
    Parameter(
        'sampling.n_samples', 1, 'Samples per context; the first valid one is the plan.', '', 1, 64
    ),
    _limit('sampling.temperature', 1.0, 10.0, '', 'Scale of the start noise.'),
    # ego history
    Parameter(
        'history.speed_source',
        _HISTORY.speed_source.value,
        'Speed at t0: fit to the positions (as in training), twist, or their mean.',
        choices=tuple(source.value for source in SpeedSource),
    ),
    _limit('history.max_gap_s', _HISTORY.max_gap_s, 1.0, 's', 'Between neighbouring samples.'),
    _limit(
        'history.max_extrapolation_s',
        _HISTORY.max_extrapolation_s,
        0.1,
        's',
        'By which samples may miss an end of the 1.5 s.',
    ),
    _limit(
        'history.max_backward_s',
        _HISTORY.max_backward_s,
        10.0,
        's',
        'Older stamps than this restart the buffer.',
    ),
    _limit(
        'history.max_speed_mps',
        _HISTORY.max_speed_mps,
        200.0,
        'm/s',
        'Faster motion between samples is a jump.',
    ),
    _limit(
        'history.max_accel_mps2',
        _HISTORY.max_accel_mps2,
        100.0,
        'm/s²',
        'Stronger bends between 0.1 s poses are a jump.',
    ),
    _limit('history.jump_margin_m', _HISTORY.jump_margin_m, 10.0, 'm', 'Position noise allowed.'),
    _limit(
        'history.max_turn_rate_rps',
        _HISTORY.max_turn_rate_rps,
        20.0,
        'rad/s',
        'Faster rotation is a jump.',
    ),
    _limit(
        'history.max_speed_mismatch_mps',
        _HISTORY.max_speed_mismatch_mps,
        20.0,
        'm/s',
        'Between the speed from positions and the twist.',
    ),
    _limit(
        'history.max_speed_mismatch_ratio',
        _HISTORY.max_speed_mismatch_ratio,
        1.0,
        '',
        'Part of the twist that is allowed on top.',
    ),
    _limit('history.buffer_length_s', _HISTORY.buffer_length_s, 600.0, 's', 'Odometry kept.'),
    Parameter(
        'history.buffer_capacity',
        _HISTORY.buffer_capacity,
        'Odometry kept.',
        'samples',
        16,
        1_000_000,
    ),
    # adjustments
    _limit(
        'adjust.low_speed_mps',
        _ADJUST.low_speed_mps,
        5.0,
        'm/s',
        'Heading is frozen below this speed; 0: never.',
    ),
    Parameter('adjust.allow_reverse', _ADJUST.allow_reverse, 'Leave negative speeds as they are.'),
    _limit(
        'adjust.reverse_tolerance_mps',
        _ADJUST.reverse_tolerance_mps,
        5.0,
        'm/s',
        'Backward speed that counts as standing; beyond it the plan ends in a stop.',
    ),
    _limit(
        'adjust.standstill_speed_mps',
        _ADJUST.standstill_speed_mps,
        5.0,
        'm/s',
        'A slower vehicle stands at t0; 0: never.',
    ),
    _limit(
        'adjust.standstill_travel_m',
        _ADJUST.standstill_travel_m,
        10.0,
        'm',
        'A standing vehicle whose plan moves less gets a clean stop.',
    ),
    # gate
    _limit('gate.max_accel_mps2', _GATE.max_accel_mps2, 50.0, 'm/s²', 'Amount of acceleration.'),
    _limit('gate.max_curvature_1pm', _GATE.max_curvature_1pm, 2.0, '1/m', 'Amount of curvature.'),
    _limit(
        'gate.max_lateral_accel_mps2',
        _GATE.max_lateral_accel_mps2,
        50.0,
        'm/s²',
        'Speed squared times curvature.',
    ),
    _limit(
        'gate.max_start_error_m',
        _GATE.max_start_error_m,
        20.0,
        'm',
        'First waypoint against v0 dt straight ahead.',
    ),
    _limit(
        'gate.max_reverse_m',
        _GATE.max_reverse_m,
        50.0,
        'm',
        'Driven backwards in all, and any waypoint behind the start.',
    ),
    _limit(
        'gate.max_reverse_speed_mps',
        _GATE.max_reverse_speed_mps,
        20.0,
        'm/s',
        'Of the sampled roll-out.',
    ),
    _limit(
        'gate.max_low_speed_heading_change_rad',
        _GATE.max_low_speed_heading_change_rad,
        6.3,
        'rad',
        'Heading that freezing may have dropped.',
    ),
    # the graph
    *(
        Parameter(
            f'topics.{name}', topic, f'Topic of {what}, relative to the namespace.', is_fixed=True
        )
        for name, topic, what in (
            ('context', 'context', 'announcements'),
            ('odometry', 'odometry', 'ego poses'),
            ('trajectory', 'trajectory', 'valid plans'),
            ('rejected', 'rejected', 'refusals'),
            ('candidates', 'candidates', 'all samples'),
            ('path', 'path', 'the plan as a path'),
            ('markers', 'markers', 'the plan as markers'),
            ('status', 'status', 'the heartbeat'),
        )
    ),
    Parameter('topics.diagnostics', '/diagnostics', 'Topic of diagnostics.', is_fixed=True),
    Parameter(
        'qos.context.reliability', 'reliable', 'Asked of text models.', choices=_RELIABILITY
    ),
    Parameter(
        'qos.odometry.reliability',
        'best_effort',
        'Asked of odometry; the weakest connects to all.',
        choices=_RELIABILITY,
    ),
    Parameter('qos.odometry.depth', 50, 'Odometry messages queued.', 'messages', 1, 1000),
    Parameter(
        'qos.outputs.reliability',
        'reliable',
        'Offered to subscribers.',
        choices=_RELIABILITY,
        is_fixed=True,
    ),
    Parameter(
        'qos.outputs.depth', 10, 'Messages queued per output.', 'messages', 1, 1000, is_fixed=True
    ),
    # health and display
    Parameter('status.rate_hz', 10.0, 'Heartbeat on status.', 'Hz', 1.0, 100.0, is_fixed=True),
    Parameter('diagnostics.rate_hz', 1.0, 'Of /diagnostics.', 'Hz', 0.1, 10.0),
    Parameter('watchdog.plan_timeout_s', 30.0, 'A longer plan is a fault.', 's', 0.1, 3600.0),
    Parameter(
        'watchdog.configure_timeout_s', 600.0, 'A longer configuration fails.', 's', 1.0, 7200.0
    ),
    Parameter(
        'markers.lifetime_s', 10.0, 'After which viewers drop markers; 0: never.', 's', 0.0, 600.0
    ),
    Parameter('markers.line_width_m', 0.3, 'Of the path ribbon.', 'm', 0.01, 5.0),
)


def admission_limits(settings: 'Settings') -> AdmissionLimits:
    """Pick what decides whether a context is planned."""
    return AdmissionLimits(
        fixed_frame=settings.text('frames.fixed'),
        max_age_s=settings.number('context.max_age_s'),
        max_future_s=settings.number('context.max_future_s'),
        prompt_fingerprints=settings.names('context.prompt_fingerprints'),
    )


def topic_name(settings: 'Settings', topic: str) -> str:
    """
    Read the name of a topic.

    :param topic: last part of its parameter
    :raises ConfigError: it is no ROS topic name
    """
    name = settings.text(f'topics.{topic}')
    if not _TOPIC.fullmatch(name):
        rule = 'must be a topic name: words of letters, digits and _, joined by /'
        raise ConfigError(f'topics.{topic}', name, rule)
    return name


@dataclass(frozen=True)
class Settings:
    """All parameters of one configuration, checked."""

    values: Mapping[str, Value]
    history: HistoryLimits
    adjust: AdjustLimits
    gate: GateLimits

    def text(self, name: str) -> str:
        """Value of a string parameter."""
        value = self.values[name]
        assert isinstance(value, str)
        return value

    def number(self, name: str) -> float:
        """Value of a float parameter."""
        value = self.values[name]
        assert isinstance(value, float)
        return value

    def integer(self, name: str) -> int:
        """Value of an integer parameter."""
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        """Value of a boolean parameter."""
        value = self.values[name]
        assert isinstance(value, bool)
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """Entries of a list parameter that are not empty."""
        value = self.values[name]
        assert isinstance(value, list)
        return tuple(entry for entry in value if entry)


def read_settings(given: Mapping[str, Any]) -> Settings:
    """
    Check all values, together and one by one.

    :param given: a value for every row of the table
    :raises ConfigError: the first value that is refused, by name
    """
    values = {row.name: row.check(given[row.name]) for row in TABLE}
    history = _group('history', values)
    history['speed_source'] = SpeedSource(history['speed_source'])
    return Settings(
        values=values,
        history=HistoryLimits(**history),
        adjust=AdjustLimits(**_group('adjust', values)),
        gate=GateLimits(**_group('gate', values)),
    )


def _group(prefix: str, values: Mapping[str, Value]) -> dict[str, Any]:
    start = prefix + '.'
    return {name.removeprefix(start): v for name, v in values.items() if name.startswith(start)}
