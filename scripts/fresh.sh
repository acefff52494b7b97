#!/usr/bin/env bash
# Proves ./quickstart on a system that has nothing: makes a bare Debian, copies the repository in, and runs it there.
#
#   scripts/fresh.sh [--with DIR] bookworm|trixie [COMMAND…]
#
# The command is ./quickstart unless another is given; a directory is copied in beside the repository, as /with.
set -euo pipefail
with=""
[[ "${1:-}" != --with ]] || { with="$(realpath "$2")" && shift 2; }
suite="${1:?which Debian: bookworm or trixie}"
shift
[[ $# -gt 0 ]] || set -- ./quickstart
CARREL_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export CARREL_CACHE="${CARREL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/carrel}"
cd "$CARREL_ROOT"
. scripts/setup.sh

[[ "$(id -u)" == 0 ]] || fail "a bare system can only be made as root" "run this as root, or leave it out"
mkdir -p "$CARREL_CACHE"
has mmdebstrap || install_missing mmdebstrap
bare="$(mktemp -d "$CARREL_CACHE/fresh-$suite.XXXXXX")"
# Every mount below it is made in a namespace that is gone by then.
trap 'rm -rf --one-file-system "$bare"' EXIT

say "making a bare Debian $suite"
mmdebstrap --quiet --variant=apt "$suite" "$bare"
# The way to the network is the host's: its resolver, its own certificates, its proxies.
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
# Its root becomes the root of the mount namespace: in a mere `chroot` the kernel refuses to make a user namespace.
unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
  bare="$1"; shift
  mount --bind "$bare" "$bare"
  mount -t proc proc "$bare/proc"
  mount --rbind /dev "$bare/dev"
  mount --rbind /sys "$bare/sys"
  mkdir -p "$bare/mnt/old"
  cd "$bare"
  pivot_root . mnt/old
  # What is bare has nothing to unmount the old root with; nothing in it is on any search path.
  exec chroot . env --chdir=/carrel "$@"
' fresh "$bare" -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "${proxies[@]}" "$@" </dev/null
