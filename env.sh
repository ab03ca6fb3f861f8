# SPDX-License-Identifier: Apache-2.0
# Source this in bash to use what `make setup` built:  . ./env.sh

if [ -z "${BASH_VERSION:-}" ]; then
  echo 'env.sh: source this in bash; other shells are not supported' >&2
  return 1
fi
_alpamayo_root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ ! -f "$_alpamayo_root/.setup/ros" ]; then
  echo "env.sh: nothing is set up in $_alpamayo_root; run 'make setup' there first" >&2
  unset _alpamayo_root
  return 1
fi
_alpamayo_ros="$(cat "$_alpamayo_root/.setup/ros")"

if [ "$_alpamayo_ros" = wheels ]; then
  . "$_alpamayo_root/.venv/bin/activate"
  unset PYTHONPATH
  export ROS_DISTRO=jazzy ROS_VERSION=2 ROS_PYTHON_VERSION=3
  export RMW_IMPLEMENTATION="${RMW_IMPLEMENTATION:-rmw_fastrtps_cpp}"
  export AMENT_PREFIX_PATH="$VIRTUAL_ENV" CMAKE_PREFIX_PATH="$VIRTUAL_ENV"
  # The wheels keep their libraries apart; without this path `import rclpy` finds none of them.
  LD_LIBRARY_PATH="$VIRTUAL_ENV/lib$(printf ':%s' "$VIRTUAL_ENV"/lib/python3.*/site-packages/ros_*.libs)"
  export LD_LIBRARY_PATH
  # With the path set, the wheels need not start every interpreter a second time.
  export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1
else
  . "$_alpamayo_ros/setup.bash"
  . "$_alpamayo_root/.venv/bin/activate"
fi
if [ -f "$_alpamayo_root/ros2_ws/install/local_setup.bash" ]; then
  . "$_alpamayo_root/ros2_ws/install/local_setup.bash"
  # ROS keeps executables out of the PATH; the `alpamayo` command is meant to be typed.
  PATH="$_alpamayo_root/ros2_ws/install/alpamayo_node/lib/alpamayo_node:$PATH"
fi
unset _alpamayo_root _alpamayo_ros
