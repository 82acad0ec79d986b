#!/usr/bin/env bash
# Checks a finished build of the engine on a machine with an NVIDIA GPU. Needs no network, and of Python only what mgr
# itself depends on (without the engine's wheel). Ends within 4 minutes, with 1 when a check failed.
#
#   scripts/gpu_check.sh --engine DIR --model FILE [--python PYTHON] [--dry-run]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=python3
arguments=()
while (($#)); do
    case $1 in
        --python) python=${2:?--python needs a value}; shift 2 ;;
        *) arguments+=("$1"); shift ;;
    esac
done
PYTHONPATH=$root exec "$python" "$root/scripts/gpu_check.py" ${arguments[@]+"${arguments[@]}"}
