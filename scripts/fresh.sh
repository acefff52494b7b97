#!/usr/bin/env bash
# Tests ./quickstart on a minimal system: creates a bare Debian, copies the repository into it, and runs the command there.
#
#   scripts/fresh.sh [--with DIR] bookworm|trixie [COMMAND…]
#
# The default command is ./quickstart. --with copies a directory into the system, as /with.
set -euo pipefail
with=""
[[ "${1:-}" != --with ]] || { with="$(realpath "$2")" && shift 2; }
suite="${1:?usage: scripts/fresh.sh [--with DIR] bookworm|trixie [COMMAND…]}"
shift
[[ $# -gt 0 ]] || set -- ./quickstart
CARREL_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export CARREL_CACHE="${CARREL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/carrel}"
cd "$CARREL_ROOT"
. scripts/setup.sh

[[ "$(id -u)" == 0 ]] || fail "creating a bare system needs root" "run this script as root"
mkdir -p "$CARREL_CACHE"
has mmdebstrap || install_missing mmdebstrap
bare="$(mktemp -d "$CARREL_CACHE/fresh-$suite.XXXXXX")"
# All mounts below it are in a mount namespace, which no longer exists when the trap runs.
trap 'rm -rf --one-file-system "$bare"' EXIT

say "creating a bare Debian $suite"
mmdebstrap --quiet --variant=apt "$suite" "$bare"
# The network configuration is that of the host: resolver, local certificates, proxies.
cp -L /etc/resolv.conf /etc/hosts "$bare/etc/"
mkdir -p "$bare/usr/local/share/ca-certificates" "$bare/carrel"
cp -rL /usr/local/share/ca-certificates/. "$bare/usr/local/share/ca-certificates/"
git ls-files --cached --others --exclude-standard -z |
  tar --create --null --files-from=- --ignore-failed-read --warning=no-failed-read | tar --extract --directory="$bare/carrel"
[[ -z "$with" ]] || cp -r "$with" "$bare/with"

proxies=()
for name in http_proxy https_proxy no_proxy; do
  [[ -z "${!name:-}" ]] || proxies+=("$name=${!name}")
done
say "running in it: $*"
# pivot_root first: in a chroot the kernel does not allow new user namespaces.
unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
  bare="$1"; shift
  mount --bind "$bare" "$bare"
  mount -t proc proc "$bare/proc"
  mount --rbind /dev "$bare/dev"
  mount --rbind /sys "$bare/sys"
  mkdir -p "$bare/mnt/old"
  cd "$bare"
  pivot_root . mnt/old
  # The bare system has no umount for the old root, but nothing below /mnt/old is on PATH.
  exec chroot . env --chdir=/carrel "$@"
' fresh "$bare" -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "${proxies[@]}" "$@" </dev/null
