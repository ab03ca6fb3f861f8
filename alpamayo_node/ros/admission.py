# SPDX-License-Identifier: Apache-2.0
"""
Decide whether an announced context may be planned, before anything is read.

What depends on the circumstances lives here: age, order, identity, and the extent of the loaded
model. Each rule refuses with its own reason. Time is an argument.
"""

from dataclasses import dataclass

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import ContextInfo
from alpamayo_node.contracts import ContextStatus
from alpamayo_node.contracts import ExpertInfo
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal


@dataclass(frozen=True)
class AdmissionLimits:
    """What a context must satisfy beyond being well formed."""

    fixed_frame: str
    max_age_s: float
    max_future_s: float
    prompt_fingerprints: tuple[str, ...]
    """Accepted prompt layouts; empty accepts any."""


class Admission:
    """Judges contexts one after the other; remembers the newest that it admitted."""

    def __init__(self, limits: AdmissionLimits, info: ExpertInfo) -> None:
        self._limits = limits
        self._info = info
        self._newest: ContextInfo | None = None

    def forget(self) -> None:
        """Start anew, as after a jump of the clock."""
        self._newest = None

    def check(self, context: ContextInfo, now_ns: int) -> None:
        """
        Accept a context, or refuse it.

        :raises Refusal: with the reason of the first rule that it breaks
        """
        self._require_ready(context)
        self._require_identity(context)
        self._require_shape(context)
        self.require_age(context, now_ns)
        self._require_order(context)

    def remember(self, context: ContextInfo) -> None:
        """Take a context as the newest one, once nothing speaks against it any more."""
        self._newest = context

    def require_age(self, context: ContextInfo, now_ns: int) -> None:
        """
        Check t0 against the clock; again when a plan is about to be published.

        :raises Refusal: TOO_OLD or FROM_THE_FUTURE
        """
        age_s = (now_ns - context.t0_ns) / NS_PER_S
        if age_s > self._limits.max_age_s:
            text = f't0 is {age_s:.3f} s ago; at most {self._limits.max_age_s} s'
            raise Refusal(Reason.TOO_OLD, text)
        if -age_s > self._limits.max_future_s:
            text = (
                f't0 is {-age_s:.3f} s ahead of the clock; at most {self._limits.max_future_s} s'
            )
            raise Refusal(Reason.FROM_THE_FUTURE, text)

    def _require_ready(self, context: ContextInfo) -> None:
        if context.status is not ContextStatus.READY:
            raise Refusal(Reason.NOT_READY, f'status is {context.status.value}')
        if context.frame_id != self._limits.fixed_frame:
            text = f'frame_id is {context.frame_id!r}, expected {self._limits.fixed_frame!r}'
            raise Refusal(Reason.FRAME_MISMATCH, text)

    def _require_identity(self, context: ContextInfo) -> None:
        if context.model_fingerprint != self._info.model_fingerprint:
            text = (
                f'made with {context.model_fingerprint}, loaded is {self._info.model_fingerprint}'
            )
            raise Refusal(Reason.MODEL_MISMATCH, text)
        known = self._limits.prompt_fingerprints
        if known and context.prompt_fingerprint not in known:
            text = f'{context.prompt_fingerprint!r} is none of {", ".join(known)}'
            raise Refusal(Reason.PROMPT_MISMATCH, text)

    def _require_shape(self, context: ContextInfo) -> None:
        for field in ('n_layers', 'n_kv_heads', 'head_dim'):
            got, wanted = getattr(context.shape, field), getattr(self._info, field)
            if got != wanted:
                raise Refusal(Reason.SHAPE_MISMATCH, f'{field} is {got}, the expert has {wanted}')
        if context.shape.n_rows > self._info.max_rows:
            text = f'{context.shape.n_rows} rows; model.max_rows is {self._info.max_rows}'
            raise Refusal(Reason.SHAPE_MISMATCH, text)

    def _require_order(self, context: ContextInfo) -> None:
        newest = self._newest
        if newest is None:
            return
        is_same = context.context_id == newest.context_id
        if is_same and context.generation <= newest.generation:
            text = f'generation {context.generation} follows {newest.generation}; it must grow'
            raise Refusal(Reason.DUPLICATE, f'{context.context_id!r}: {text}')
        if context.t0_ns < newest.t0_ns:
            text = f't0 is {(newest.t0_ns - context.t0_ns) / NS_PER_S:.3f} s before the newest one'
            raise Refusal(Reason.OUT_OF_ORDER, text)
