# SPDX-License-Identifier: Apache-2.0
"""
On a real chip: `make chip-report` runs these and writes `out/chip_report.json`.

No chip was at hand when they were written: what they hold is what the emulation shows, and what
public reports say can go wrong on silicon. Each job runs in a process that owns the chip, under a
watchdog; nothing here resets one.
"""

from collections.abc import Iterator
import json
from typing import Any

import pytest

from tests.chip.chip_process import ChipProcess
from tests.conftest import ROOT

pytestmark = [pytest.mark.chip, pytest.mark.timeout(3600)]
REPORT = ROOT / 'out' / 'chip_report.json'
VELOCITY_TOLERANCES = {'bf16': 0.03, 'bfp8': 0.05, 'bfp4': 0.5}
"""Twice what the emulation of two such layers shows."""
LENGTHS = [4479, 4480, 4481, 4592, 8128, 65]
"""At, just before and just behind the end of a chunk of 128 rows; partial last chunk; extremes."""
SWEEP: list[dict[str, Any]] = [
    {},
    {'attention': 'standard'},
    {'attention': 'standard', 'is_folded': True},
    {'cache_dtype': 'bfp8'},
    {'weights': 'bf16'},
    {'weights': 'bfp4'},
    {'mask_dtype': 'bf16'},
    {'k_chunk_rows': 64},
    {'k_chunk_rows': 256},
    {'is_tuned': False},
]


@pytest.fixture(scope='module')
def report() -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {}
    yield found
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(found, indent=2))


@pytest.fixture(scope='module')
def chip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChipProcess]:
    process = ChipProcess(tmp_path_factory.mktemp('silicon'), {})
    yield process
    process.close()


@pytest.mark.parametrize('options', SWEEP, ids=str)
def test_silicon_passes_the_self_test(
    options: dict[str, Any], chip: ChipProcess, report: dict[str, Any]
) -> None:
    line = chip.call('tests.chip.silicon:self_test', timeout_s=1200.0, **options)
    report[f'self_test {options}'] = line
    assert 'replays equal' in line


@pytest.mark.parametrize('options', SWEEP, ids=str)
def test_silicon_follows_the_cpu(
    options: dict[str, Any], chip: ChipProcess, report: dict[str, Any]
) -> None:
    found = chip.call(
        'tests.chip.silicon:compare_with_cpu', timeout_s=1200.0, n_rows=4592, **options
    )
    report[f'velocity {options}'] = found['velocity']
    assert found['velocity'] <= VELOCITY_TOLERANCES[options.get('weights', 'bfp8')]


@pytest.mark.parametrize('attention', ['decode', 'standard'])
def test_silicon_survives_a_thousand_replays(
    attention: str, chip: ChipProcess, report: dict[str, Any]
) -> None:
    found = chip.call(
        'tests.chip.silicon:soak',
        timeout_s=1800.0,
        n_replays=1000,
        lengths=LENGTHS,
        attention=attention,
    )
    report[f'soak {attention}'] = found
    assert found['n_replays'] >= 1000


@pytest.mark.parametrize('options', SWEEP, ids=str)
def test_silicon_times(options: dict[str, Any], chip: ChipProcess, report: dict[str, Any]) -> None:
    found = chip.call('tests.chip.silicon:times', timeout_s=1200.0, n_rows=4592, **options)
    report[f'times {options}'] = found
    assert found['step_ms'] > 0
    assert len(found['ops_us']) == (21 if options.get('cache_dtype') == 'bfp8' else 19)
