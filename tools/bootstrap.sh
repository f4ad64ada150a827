# Sourced by ./demo and ./test: finds a Python that can make virtual environments (PYTHON) and installs, on a Debian
# machine where we are root, the system packages that are missing. Reads nothing from the terminal.

kvferry_say() { printf '%s\n' "$*" >&2; }

# kvferry_find_python: sets PYTHON to an interpreter of version 3.11 or later that has venv, pip and the C headers.
kvferry_find_python() {
  local candidate found
  PYTHON=""
  for candidate in ${KVFERRY_PYTHON:-python3.11 python3.12 python3.13 python3}; do
    # /usr/bin comes second: a version manager's shim may come first in PATH and have no such version.
    for found in "$(command -v "$candidate" || true)" "/usr/bin/$candidate"; do
      if [ -x "$found" ] && "$found" -c '
import ensurepip, os, sys, sysconfig, venv
assert sys.version_info >= (3, 11)
assert os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
' >/dev/null 2>&1; then
        PYTHON=$found
        return 0
      fi
    done
  done
  return 1
}

# kvferry_apt PACKAGE...: installs Debian packages, or says which command would.
kvferry_apt() {
  if ! command -v apt-get >/dev/null 2>&1; then
    kvferry_say "error: please install what Debian calls: $*"
    return 1
  fi
  if [ "$(id -u)" != 0 ]; then
    kvferry_say "error: these system packages are missing; as root: apt-get install $*"
    return 1
  fi
  kvferry_say "installing system packages: $*"
  export DEBIAN_FRONTEND=noninteractive
  local log
  log=$(mktemp)
  if ! { apt-get install -y --no-install-recommends "$@" ||
    { apt-get update && apt-get install -y --no-install-recommends "$@"; }; } </dev/null >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    kvferry_say "error: apt-get could not install: $*"
    return 1
  fi
  rm -f "$log"
}

# kvferry_system_packages [test]: a compiler and Python; with `test`, also what the native suite, its fuzzers and
# the tests of metadata stores need.
kvferry_system_packages() {
  local wanted=()
  if [ -n "${KVFERRY_PYTHON:-}" ] && ! kvferry_find_python; then
    kvferry_say "error: KVFERRY_PYTHON=$KVFERRY_PYTHON is no Python 3.11 or later with venv and headers; correct or unset it"
    return 1
  fi
  command -v g++ >/dev/null 2>&1 || wanted+=(g++)
  kvferry_find_python || wanted+=(python3 python3-venv python3-dev)
  # vLLM's CPU kernels are linked with it; without it vLLM starts and then fails.
  ldconfig -p 2>/dev/null | grep -q 'libnuma\.so\.1' || wanted+=(libnuma1)
  if [ "${1:-}" = test ]; then
    [ -e /usr/include/gtest/gtest.h ] || wanted+=(libgtest-dev)
    command -v git >/dev/null 2>&1 || wanted+=(git)
    command -v pkg-config >/dev/null 2>&1 || wanted+=(pkg-config)
    command -v etcd >/dev/null 2>&1 || wanted+=(etcd-server)
    command -v ip >/dev/null 2>&1 || wanted+=(iproute2)
    if ! ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a >/dev/null 2>&1; then
      if apt-cache show clang-14 >/dev/null 2>&1; then wanted+=(clang-14 libclang-rt-14-dev); else wanted+=(clang libclang-rt-dev); fi
    fi
  fi
  if [ ${#wanted[@]} -gt 0 ]; then
    kvferry_apt "${wanted[@]}" || return 1
  fi
  if ! kvferry_find_python; then
    kvferry_say "error: no Python 3.11 or later with venv and headers was found; set KVFERRY_PYTHON to one"
    return 1
  fi
}
