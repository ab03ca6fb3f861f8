# SPDX-License-Identifier: Apache-2.0
"""
The exceptions of this project.

Every error says what was wrong, with which value, and what to do. Lower layers raise; only the
worker thread, the node and the command line catch. Three families matter to a reader:

- `Refusal`: this one context or plan cannot be vouched for. The node answers with its reason,
  counts it and goes on.
- `SetupError`: the configuration, the checkpoint or a parameter is wrong. The node does not become
  active.
- `BackendError`: the expert itself failed. The node reports it and stops planning.
"""

from enum import StrEnum


class AlpamayoError(Exception):
    """Base of everything that this project raises on purpose."""


class SetupError(AlpamayoError):
    """What the node starts from is wrong; planning cannot begin."""


class ConfigError(SetupError, ValueError):
    """A value of a configuration is missing, impossible or at odds with another one."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        """
        :param field: dotted name of the field, as the user wrote it
        :param value: the value that was refused
        :param rule: what would have been accepted
        """
        super().__init__(f'{field} = {value!r}: {rule}')
        self.field = field
        self.value = value
        self.rule = rule


class CheckpointError(SetupError):
    """A checkpoint on disk is incomplete, damaged or not of this model."""


class BackendError(AlpamayoError):
    """The backend could not do its work; its state is not to be trusted."""


class SelfTestError(BackendError, SetupError):
    """The start-up self-test of a backend gave a wrong result."""


class Cancelled(AlpamayoError):
    """Long work stopped half-way because its owner asked for it."""


class Reason(StrEnum):
    """
    Why a context got no valid plan: the codes of messages, counters and logs.

    The names are a public contract (`alpamayo_msgs/Reason`): add, never rename.
    """

    # the announcement
    BAD_MESSAGE = 'bad_message'
    NOT_READY = 'not_ready'
    DUPLICATE = 'duplicate'
    OUT_OF_ORDER = 'out_of_order'
    TOO_OLD = 'too_old'
    FROM_THE_FUTURE = 'from_the_future'
    MODEL_MISMATCH = 'model_mismatch'
    PROMPT_MISMATCH = 'prompt_mismatch'
    SHAPE_MISMATCH = 'shape_mismatch'
    CONTEXT_UNREADABLE = 'context_unreadable'
    DIGEST_MISMATCH = 'digest_mismatch'
    # the ego history
    FRAME_MISMATCH = 'frame_mismatch'
    HISTORY_MISSING = 'history_missing'
    HISTORY_SHORT = 'history_short'
    HISTORY_GAP = 'history_gap'
    HISTORY_JUMP = 'history_jump'
    HISTORY_BACKWARD = 'history_backward'
    HISTORY_EXTRAPOLATION = 'history_extrapolation'
    HISTORY_INVALID = 'history_invalid'
    SPEED_MISMATCH = 'speed_mismatch'
    # the plan
    NON_FINITE = 'non_finite'
    ACCELERATION = 'acceleration'
    CURVATURE = 'curvature'
    LATERAL_ACCELERATION = 'lateral_acceleration'
    START_ERROR = 'start_error'
    REVERSAL = 'reversal'
    LOW_SPEED_HEADING = 'low_speed_heading'
    STANDSTILL = 'standstill'  # an adjustment only
    # the circumstances
    CLOCK_JUMP = 'clock_jump'
    CANCELLED = 'cancelled'
    BACKEND_FAILED = 'backend_failed'
    INTERNAL_ERROR = 'internal_error'


class Refusal(AlpamayoError):
    """A context or plan that we do not vouch for, with a reason for machines and for people."""

    def __init__(self, reason: Reason, text: str) -> None:
        """
        :param reason: code, for counters and consumers
        :param text: what was wrong, with which value, and what was expected
        """
        super().__init__(f'{reason}: {text}')
        self.reason = reason
        self.text = text
