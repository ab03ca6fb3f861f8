# SPDX-License-Identifier: Apache-2.0
from itertools import pairwise
import json
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest

from alpamayo_node import __version__
from alpamayo_node.tools import cli

ROOT = Path(__file__).parents[2]


def run(*argv: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own."""
    return subprocess.run(
        [sys.executable, '-m', 'alpamayo_node.tools.cli', *argv],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
        **options,
    )


def test_cli_help_names_every_command_and_imports_none_of_them() -> None:
    code = (
        'import sys; from alpamayo_node.tools import cli\n'
        "try: cli.main(['--help'])\n"
        'except SystemExit: pass\n'
        "print('LOADED', 'torch' in sys.modules, 'rclpy' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    for name in cli.COMMANDS:
        assert name in result.stdout
    assert 'LOADED False False' in result.stdout


def test_cli_version_is_the_package_version() -> None:
    result = run('--version')
    assert result.returncode == 0
    assert result.stdout.split() == ['alpamayo', __version__]
    setup = (ROOT / 'setup.py').read_text()
    assert f"version='{__version__}'" in setup
    assert f'<version>{__version__}</version>' in (ROOT / 'package.xml').read_text()


@pytest.mark.parametrize('argv', [[], ['unknown'], ['plan'], ['plan', '--checkpoint']])
def test_cli_wrong_usage_ends_with_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2


def test_cli_every_command_has_help() -> None:
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as caught:
            cli.main([name, '--help'])
        assert caught.value.code == 0


def test_cli_error_is_one_line_without_traceback(tmp_path: Path) -> None:
    result = run('plan', '--checkpoint', str(tmp_path), '--context', str(tmp_path / 'absent'))
    assert result.returncode == cli.EXIT_REFUSED
    assert result.stdout == ''
    assert result.stderr.count('\n') == 1
    assert 'absent' in result.stderr


def test_cli_reader_that_leaves_early_is_no_error(tiny_model: Path) -> None:
    command = (
        f'{sys.executable} -m alpamayo_node.tools.cli plan --json --samples 3 '
        f'--checkpoint {tiny_model}/checkpoint --context {tiny_model}/contexts/drive-0.safetensors'
    )
    result = subprocess.run(
        ['bash', '-c', f'set -o pipefail; {command} | head -c 10'],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == cli.EXIT_BROKEN_PIPE
    assert result.stderr == ''


def test_cli_plan_prints_the_same_plan_twice_and_reads_back_exactly(tiny_model: Path) -> None:
    argv = ('plan', '--checkpoint', str(tiny_model / 'checkpoint'), '--json', '--samples', '2')
    context = ('--context', str(tiny_model / 'contexts' / 'drive-0.safetensors'))
    results = [run(*argv, *context) for _ in range(2)]
    assert [result.returncode for result in results] == [0, 0]
    first, second = (json.loads(result.stdout) for result in results)
    for plan in (*first['plans'], *second['plans']):
        del plan['times_s']
    assert first == second
    assert first['expert']['model_fingerprint'].startswith('sha256:')
    for i, plan in enumerate(first['plans']):
        assert plan['sample'] == i
        assert len(plan['noise']) == len(plan['action']) == len(plan['waypoints']) == 64
        assert plan['valid'] == (not plan['reasons'])
        assert json.loads(json.dumps(plan)) == plan


def test_cli_plan_records_every_step(tiny_model: Path, tmp_path: Path) -> None:
    record = tmp_path / 'record.json'
    argv = ['plan', '--checkpoint', str(tiny_model / 'checkpoint'), '--steps', '4']
    argv += ['--context', str(tiny_model / 'contexts' / 'drive-0.safetensors')]
    assert cli.main([*argv, '--record', str(record)]) == 0
    steps = json.loads(record.read_text())['steps']
    assert [step['t'] for step in steps] == [0.0, 0.25, 0.5, 0.75]
    for step, following in pairwise(steps):
        moved = step['x'][5][0] + 0.25 * step['v'][5][0]
        assert following['x'][5][0] == pytest.approx(moved, abs=1e-6)


@pytest.mark.parametrize(
    ('argv', 'named'),
    [
        (['--steps', '0'], '--steps'),
        (['--samples', '0'], '--samples'),
        (['--seed', '-1'], '--seed'),
        (['--temperature', '-1'], 'temperature'),
        (['--history', 'absent.json'], '--history'),
    ],
)
def test_cli_plan_impossible_value_is_refused_by_name(
    tiny_model: Path, argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ['plan', '--checkpoint', str(tiny_model / 'checkpoint')]
    base += ['--context', str(tiny_model / 'contexts' / 'drive-0.safetensors')]
    assert cli.main([*base, *argv]) == cli.EXIT_REFUSED
    assert named in capsys.readouterr().err


def test_cli_plan_history_file_moves_the_start(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / 'history.json'
    samples = [
        {
            'stamp_ns': 10**12 + k * 5 * 10**7,
            'position_m': [3.0 * k / 20, 7.0, 0.0],
            'orientation_xyzw': [0.0, 0.0, 0.0, 1.0],
            'speed_mps': None,
        }
        for k in range(-40, 1)
    ]
    history.write_text(json.dumps({'frame_id': 'odom', 'samples': samples}))
    argv = ['plan', '--checkpoint', str(tiny_model / 'checkpoint'), '--json', '--t0', str(10**12)]
    argv += ['--context', str(tiny_model / 'contexts' / 'drive-0.safetensors')]
    cli.main([*argv, '--history', str(history)])
    (plan,) = json.loads(capsys.readouterr().out)['plans']
    assert plan['start']['frame_id'] == 'odom'
    assert plan['start']['position_m'] == [0.0, 7.0, 0.0]
    assert plan['start']['speed_mps'] == pytest.approx(3.0, abs=1e-2)
    assert plan['start']['speed_from_twist_mps'] is None


def test_cli_plan_that_is_not_valid_ends_with_1(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ['plan', '--checkpoint', str(tiny_model / 'checkpoint'), '--temperature', '60']
    argv += ['--context', str(tiny_model / 'contexts' / 'drive-0.safetensors')]
    assert cli.main(argv) == 1
    assert 'NOT VALID' in capsys.readouterr().out


def test_cli_fingerprint_is_what_contexts_carry(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(['fingerprint', str(tiny_model / 'checkpoint')]) == 0
    printed = capsys.readouterr().out.strip()
    assert re.fullmatch(r'sha256:[0-9a-f]{64}', printed)
    content = (tiny_model / 'contexts' / 'drive-0.safetensors').read_bytes()
    assert printed.encode() in content


def test_cli_document_names_every_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / 'docs' / 'cli.md').read_text(encoding='utf-8')
    os.environ.setdefault('COLUMNS', '200')
    for name in cli.COMMANDS:
        assert f'## `{name}`' in text
        with pytest.raises(SystemExit):
            cli.main([name, '--help'])
        options = set(re.findall(r'--[a-z][a-z0-9-]+', capsys.readouterr().out)) - {'--help'}
        for option in options:
            assert f'`{option}' in text, f'{name} {option}'
