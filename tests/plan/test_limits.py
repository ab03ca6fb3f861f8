# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from dataclasses import fields
from dataclasses import replace
import math

import pytest

from alpamayo_node.errors import ConfigError
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.history import HistoryLimits

SECTIONS = {'adjust': AdjustLimits, 'gate': GateLimits, 'history': HistoryLimits}


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf, -0.01, True, '1', None])
@pytest.mark.parametrize(
    ('section', 'name'),
    [
        (section, item.name)
        for section, limits in SECTIONS.items()
        for item in fields(limits)
        if item.type is float
    ],
)
def test_limit_that_is_no_finite_positive_number_is_refused_by_its_dotted_name(
    section: str, name: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=f'^{section}.{name} = ') as refusal:
        replace(SECTIONS[section](), **{name: value})
    assert refusal.value.field == f'{section}.{name}'


def test_limit_may_be_a_whole_number() -> None:
    assert GateLimits(max_accel_mps2=10).max_accel_mps2 == 10


@pytest.mark.parametrize(
    'make',
    [
        lambda: AdjustLimits(allow_reverse='yes'),
        lambda: HistoryLimits(speed_source='twist'),
        lambda: HistoryLimits(max_gap_s=0.0),
        lambda: HistoryLimits(max_extrapolation_s=0.11),
        lambda: HistoryLimits(buffer_length_s=1.4),
        lambda: HistoryLimits(buffer_capacity=15),
    ],
)
def test_limit_at_odds_with_its_meaning_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()
