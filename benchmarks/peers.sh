#!/usr/bin/env bash
# Makes the environment with the transfer libraries that transfer.py measures beside ours (NIXL, gloo, Mooncake), kept
# in the cache by its pins, and prints its interpreter:
#     python benchmarks/transfer.py --peers "$(benchmarks/peers.sh)"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python3 -m tools.envs bench-peers | tail -n 1
