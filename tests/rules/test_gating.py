# SPDX-License-Identifier: Apache-2.0
"""Tests that need what is not here are skipped with a reason, or fail where they are required."""

import os
from pathlib import Path
import re
import shutil
import subprocess
import sys

import pytest

from tests.rules.tree import ROOT

ROS_TEST = 'import alpamayo_msgs\n\n\ndef test_ros():\n    pass\n'
CHIP_TEST = 'import pytest\n\n\n@pytest.mark.chip\ndef test_chip():\n    pass\n'
PLAIN_TEST = (
    'import os\n'
    'import random\n\n\n'
    'def test_plain():\n'
    "    assert os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] == 'LOCALHOST'\n"
    "    assert 1 <= int(os.environ['ROS_DOMAIN_ID']) <= 101\n"
    '    assert random.random() == random.Random(0).random()\n'
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project with our conftest and three tests; no ROS is in its reach."""
    tests = {'test_chip.py': CHIP_TEST, 'test_plain.py': PLAIN_TEST, 'ros/test_ros.py': ROS_TEST}
    for name, text in tests.items():
        path = tmp_path / 'tests' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(ROOT / 'tests' / 'conftest.py', tmp_path / 'tests')
    shutil.copy(ROOT / 'pyproject.toml', tmp_path)
    return tmp_path


def run(project: Path, required: str) -> tuple[int, str]:
    environment = {**os.environ, 'ALPAMAYO_REQUIRE': required, 'ROS_DOMAIN_ID': '0'}
    environment.pop('PYTHONPATH', None)
    process = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider'],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return process.returncode, process.stdout


pytestmark = pytest.mark.skipif(
    Path('/dev/tenstorrent').exists(), reason='there is a chip: nothing is missing'
)


def test_missing_things_skip_their_tests_with_the_reason(project: Path) -> None:
    code, out = run(project, required='')
    assert code == 0, out
    assert '1 passed, 2 skipped' in out
    assert re.search(r'no (rclpy and no )?alpamayo_msgs here \(run `\. \./env\.sh` first\)', out)
    assert 'no /dev/tenstorrent: no Tenstorrent chip' in out


def test_missing_ros_fails_where_it_is_required(project: Path) -> None:
    code, out = run(project, required='ros')
    assert code != 0
    assert 'ERROR collecting tests/ros/test_ros.py' in out
    assert 'alpamayo_msgs here' in out


def test_missing_chip_fails_where_it_is_required(project: Path) -> None:
    code, out = run(project, required='chip')
    assert code == 1
    assert 'ALPAMAYO_REQUIRE names chip, but: no /dev/tenstorrent' in out
    assert '1 passed, 1 skipped, 1 error' in out
