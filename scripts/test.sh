#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run the tests in a ROS graph of their own; further arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
set +u
# shellcheck source=/dev/null
. ./env.sh
set -u
export ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST
export ROS_DOMAIN_ID="${ROS_DOMAIN_ID:-$((RANDOM % 100 + 1))}"
export ROS_LOG_DIR="$PWD/.setup/ros_log"
export ALPAMAYO_REQUIRE="${ALPAMAYO_REQUIRE:-ros}"
exec python -m pytest "$@"
