# SPDX-License-Identifier: Apache-2.0
# Source this in bash to use what the set-up built:  . ./env.sh
# ALPAMAYO_ROS_PREFIX: a ROS 2 Jazzy installation to use (default /opt/ros/jazzy); "wheels" ignores it.

_alpamayo_root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
_alpamayo_ros="${ALPAMAYO_ROS_PREFIX:-/opt/ros/jazzy}"

if [ ! -f "$_alpamayo_root/.venv/bin/activate" ]; then
  echo "env.sh: nothing is set up yet; run 'make setup' first" >&2
  return 1
fi
unset PYTHONPATH
if [ -f "$_alpamayo_ros/setup.bash" ]; then
  . "$_alpamayo_ros/setup.bash"
  . "$_alpamayo_root/.venv/bin/activate"
else
  . "$_alpamayo_root/.venv/bin/activate"
  export ROS_DISTRO=jazzy ROS_VERSION=2 ROS_PYTHON_VERSION=3
  export RMW_IMPLEMENTATION="${RMW_IMPLEMENTATION:-rmw_fastrtps_cpp}"
  export AMENT_PREFIX_PATH="$VIRTUAL_ENV" CMAKE_PREFIX_PATH="$VIRTUAL_ENV"
  # The wheels keep their libraries apart; without this path `import rclpy` finds none of them.
  LD_LIBRARY_PATH="$VIRTUAL_ENV/lib$(printf ':%s' "$VIRTUAL_ENV"/lib/python3.*/site-packages/ros_*.libs)"
  export LD_LIBRARY_PATH
  # With the path set, the wheels need not start every interpreter a second time.
  export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1
fi
if [ -f "$_alpamayo_root/ros2_ws/install/local_setup.bash" ]; then
  . "$_alpamayo_root/ros2_ws/install/local_setup.bash"
  PATH="$_alpamayo_root/ros2_ws/install/alpamayo_node/lib/alpamayo_node:$PATH"
  export PATH
fi
unset _alpamayo_root _alpamayo_ros
