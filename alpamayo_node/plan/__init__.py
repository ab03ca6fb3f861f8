# SPDX-License-Identifier: Apache-2.0
"""What a plan is: start state, kinematics, gate, and the pipeline that runs them."""
