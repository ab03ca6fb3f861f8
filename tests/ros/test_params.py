# SPDX-License-Identifier: Apache-2.0
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from alpamayo_node.errors import ConfigError
from alpamayo_node.plan.adjust import AdjustLimits
from alpamayo_node.plan.gate import GateLimits
from alpamayo_node.plan.history import HistoryLimits
from alpamayo_node.plan.history import SpeedSource
from alpamayo_node.ros import document
from alpamayo_node.ros import stand_in
from alpamayo_node.ros.params import TABLE
from alpamayo_node.ros.params import Parameter
from alpamayo_node.ros.params import read_settings

ROOT = Path(__file__).parents[2]
DEFAULTS = {row.name: row.default for row in TABLE}
RANGED = [row for row in TABLE if row.low is not None]
UNITS = ('_s', '_m', '_mps', '_mps2', '_1pm', '_rad', '_rps', '_hz', '_rows', '_ratio')


def test_table_names_are_unique_and_described() -> None:
    assert len(DEFAULTS) == len(TABLE)
    for row in (*TABLE, *stand_in.TABLE):
        assert row.description.endswith('.'), row.name


def test_table_defaults_are_the_defaults_of_the_limits() -> None:
    settings = read_settings(DEFAULTS)
    assert settings.history == HistoryLimits()
    assert settings.adjust == AdjustLimits()
    assert settings.gate == GateLimits()


def test_table_has_a_row_for_every_limit() -> None:
    for group, limits in (
        ('history', HistoryLimits),
        ('adjust', AdjustLimits),
        ('gate', GateLimits),
    ):
        for item in fields(limits):
            assert f'{group}.{item.name}' in DEFAULTS


def test_table_every_number_has_a_range_that_holds_its_default() -> None:
    for row in (*TABLE, *stand_in.TABLE):
        if type(row.default) in (int, float):
            assert row.low is not None, row.name
            assert row.high is not None, row.name
            assert row.low <= row.default <= row.high, row.name


def test_table_physical_names_end_in_their_unit() -> None:
    for row in (*TABLE, *stand_in.TABLE):
        if isinstance(row.default, float) and row.unit:
            assert row.name.endswith(UNITS), row.name


@pytest.mark.parametrize('row', RANGED, ids=lambda row: row.name)
def test_parameter_outside_its_range_is_refused_by_name(row: Parameter) -> None:
    assert row.low is not None
    assert row.high is not None
    for value in (row.low - 1, row.high + 1):
        with pytest.raises(ConfigError, match=row.name):
            read_settings({**DEFAULTS, row.name: type(row.default)(value)})
    read_settings({**DEFAULTS, row.name: type(row.default)(row.high)})


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('autostart', 1),
        ('autostart', 'true'),
        ('backend', 'chip'),
        ('gate.max_accel_mps2', True),
        ('gate.max_accel_mps2', '9'),
        ('gate.max_accel_mps2', float('nan')),
        ('sampling.n_steps', 2.0),
        ('frames.fixed', 3),
        ('context.prompt_fingerprints', 'a'),
        ('history.speed_source', 'guess'),
    ],
)
def test_parameter_of_the_wrong_kind_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        read_settings({**DEFAULTS, name: value})


def test_parameter_values_reach_the_limits() -> None:
    changes = {
        'gate.max_curvature_1pm': 0.2,
        'adjust.allow_reverse': True,
        'history.speed_source': 'twist',
        'context.prompt_fingerprints': ['', 'a'],
    }
    settings = read_settings({**DEFAULTS, **changes})
    assert settings.gate.max_curvature_1pm == 0.2
    assert settings.adjust.allow_reverse
    assert settings.history.speed_source is SpeedSource.TWIST
    assert settings.names('context.prompt_fingerprints') == ('a',)


def test_limits_that_contradict_each_other_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r'history\.buffer_length_s'):
        read_settings({**DEFAULTS, 'history.buffer_length_s': 1.0})


def test_descriptor_tells_range_unit_and_choices() -> None:
    rows = {row.name: row.descriptor() for row in TABLE}
    accel = rows['gate.max_accel_mps2']
    assert 'm/s²' in accel.description
    assert accel.floating_point_range[0].to_value == 50.0
    assert rows['sampling.n_steps'].integer_range[0].from_value == 1
    assert 'float32' in rows['torch.precision'].description


def test_yaml_file_holds_every_parameter_with_its_default_and_a_comment() -> None:
    text = (ROOT / 'params' / 'planner.yaml').read_text(encoding='utf-8')
    values = yaml.safe_load(text)['/**']['ros__parameters']
    assert flat(values) == DEFAULTS
    lines = text.splitlines()
    for i, line in enumerate(lines):
        is_value = ':' in line and not line.rstrip().endswith(':') and '#' not in line
        assert not is_value or lines[i - 1].lstrip().startswith('# '), line


def test_written_files_are_what_the_table_says() -> None:
    assert (ROOT / 'params' / 'planner.yaml').read_text(encoding='utf-8') == document.yaml_text()
    interface = (ROOT / 'docs' / 'interface.md').read_text(encoding='utf-8')
    assert document.with_tables(interface) == interface


def flat(values: dict[str, Any], prefix: str = '') -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            result |= flat(value, f'{prefix}{name}.')
        else:
            result[f'{prefix}{name}'] = value
    return result
