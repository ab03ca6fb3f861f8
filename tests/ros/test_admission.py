# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import ContextStatus
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.ros.admission import Admission
from alpamayo_node.ros.admission import AdmissionLimits
from tests.fakes.expert import SHAPE
from tests.fakes.expert import ScriptedExpert
from tests.fakes.expert import make_context

pytestmark = pytest.mark.ros

NOW_NS = 1_000 * NS_PER_S
LIMITS = AdmissionLimits(
    fixed_frame='map', max_age_s=5.0, max_future_s=0.1, prompt_fingerprints=()
)
GOOD = make_context(t0_ns=NOW_NS - NS_PER_S, frame_id='map')
INFO = ScriptedExpert().info


def admission(**limits: object) -> Admission:
    return Admission(replace(LIMITS, **limits), INFO)


def reason_for(judge: Admission, context, now_ns: int = NOW_NS) -> Reason | None:
    try:
        judge.check(context, now_ns)
    except Refusal as refusal:
        return refusal.reason
    return None


def test_admission_good_context_is_accepted() -> None:
    assert reason_for(admission(), GOOD) is None


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'status': ContextStatus.INCOMPLETE}, Reason.NOT_READY),
        ({'status': ContextStatus.ABORTED}, Reason.NOT_READY),
        ({'frame_id': 'odom'}, Reason.FRAME_MISMATCH),
        ({'frame_id': ''}, Reason.FRAME_MISMATCH),
        ({'model_fingerprint': 'sha256:' + '1' * 64}, Reason.MODEL_MISMATCH),
        ({'model_fingerprint': ''}, Reason.MODEL_MISMATCH),
        ({'shape': replace(SHAPE, n_layers=3)}, Reason.SHAPE_MISMATCH),
        ({'shape': replace(SHAPE, n_kv_heads=1)}, Reason.SHAPE_MISMATCH),
        ({'shape': replace(SHAPE, head_dim=64)}, Reason.SHAPE_MISMATCH),
        ({'shape': replace(SHAPE, n_rows=INFO.max_rows + 1)}, Reason.SHAPE_MISMATCH),
    ],
)
def test_admission_context_that_does_not_fit_is_refused(changes, reason: Reason) -> None:
    assert reason_for(admission(), replace(GOOD, **changes)) is reason


def test_admission_context_of_exactly_the_largest_size_is_accepted() -> None:
    shape = replace(SHAPE, n_rows=INFO.max_rows)
    assert reason_for(admission(), replace(GOOD, shape=shape)) is None


@pytest.mark.parametrize(
    ('age_ns', 'reason'),
    [
        (5 * NS_PER_S, None),
        (5 * NS_PER_S + 1, Reason.TOO_OLD),
        (NOW_NS, Reason.TOO_OLD),  # a stamp of 0: nobody set it
        (0, None),
        (-NS_PER_S // 10, None),
        (-NS_PER_S // 10 - 1, Reason.FROM_THE_FUTURE),
    ],
)
def test_admission_age_limits_hold_to_the_nanosecond(age_ns: int, reason: Reason | None) -> None:
    assert reason_for(admission(), replace(GOOD, t0_ns=NOW_NS - age_ns)) is reason


@pytest.mark.parametrize(
    ('known', 'reason'),
    [
        ((), None),
        (('other', GOOD.prompt_fingerprint), None),
        (('other',), Reason.PROMPT_MISMATCH),
    ],
)
def test_admission_prompt_layouts_can_be_restricted(known, reason: Reason | None) -> None:
    assert reason_for(admission(prompt_fingerprints=known), GOOD) is reason


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({}, Reason.DUPLICATE),
        ({'generation': GOOD.generation - 1}, Reason.DUPLICATE),
        ({'generation': GOOD.generation + 1}, None),
        ({'context_id': 'next'}, None),
        ({'context_id': 'next', 'generation': 0}, None),
        ({'context_id': 'next', 't0_ns': GOOD.t0_ns - 1}, Reason.OUT_OF_ORDER),
        ({'generation': GOOD.generation + 1, 't0_ns': GOOD.t0_ns - 1}, Reason.OUT_OF_ORDER),
    ],
)
def test_admission_follows_only_what_is_new(changes, reason: Reason | None) -> None:
    judge = admission()
    judge.check(GOOD, NOW_NS)
    judge.remember(GOOD)
    assert reason_for(judge, replace(GOOD, **changes)) is reason


def test_admission_refused_context_is_not_what_the_next_is_compared_with() -> None:
    judge = admission()
    aborted = replace(GOOD, status=ContextStatus.ABORTED)
    assert reason_for(judge, aborted) is Reason.NOT_READY
    assert reason_for(judge, GOOD) is None


def test_admission_after_a_jump_of_the_clock_begins_anew() -> None:
    judge = admission()
    judge.remember(GOOD)
    judge.forget()
    assert reason_for(judge, replace(GOOD, t0_ns=GOOD.t0_ns - NS_PER_S)) is None


@pytest.mark.parametrize(
    ('changes', 'hints'),
    [
        ({'t0_ns': NOW_NS - 7 * NS_PER_S}, ('7.000 s', '5.0 s')),
        ({'t0_ns': NOW_NS + NS_PER_S}, ('1.000 s', '0.1 s')),
        ({'frame_id': 'odom'}, ("'odom'", "'map'")),
        ({'shape': replace(SHAPE, n_rows=9000)}, ('9000', '8128', 'model.max_rows')),
    ],
)
def test_admission_refusal_tells_value_and_limit(changes, hints: tuple[str, ...]) -> None:
    with pytest.raises(Refusal) as refusal:
        admission().check(replace(GOOD, **changes), NOW_NS)
    for hint in hints:
        assert hint in str(refusal.value)
