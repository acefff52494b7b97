#!/usr/bin/env bash
# Downloads Debian's kernel for virtual machines and a static busybox, and unpacks them without installing them. Installs
# the emulator if it is missing.
#
#   tests/vm/fetch.sh bookworm|trixie       leaves kernel/ and busybox/ below $CARREL_CACHE/vm/SUITE
set -euo pipefail
suite="${1:?which Debian: bookworm or trixie}"
CARREL_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export CARREL_CACHE="${CARREL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/carrel}"
. "$CARREL_ROOT/scripts/setup.sh"

architecture="$(dpkg --print-architecture 2>/dev/null || true)"
[[ "$architecture" == amd64 ]] || fail "the machines are amd64" "run this on an amd64 Debian, or leave it out"
mkdir -p "$CARREL_CACHE/vm"
exec 9>"$CARREL_CACHE/vm/$suite.lock"
flock 9
has qemu-system-x86_64 || install_missing qemu-system-x86
directory="$CARREL_CACHE/vm/$suite"
[[ ! -e "$directory/complete" ]] || exit 0

keys=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -e "$keys" ]] || install_missing debian-archive-keyring
# The same mirror as this system, with separate package lists.
targets=('Created-By: Packages' 'Origin: Debian' 'Label: Debian')
mirror="$(apt-get indextargets --format '$(REPO_URI)' "${targets[@]}" | sed -n 1p)"
[[ -n "$mirror" ]] ||
  fail "no archive of Debian is among the sources of packages" "add one in /etc/apt, and run apt-get update"
new="$(mktemp -d "$directory.XXXXXX")"
trap 'rm -rf "$new"' EXIT
mkdir -p "$new"/lists/partial "$new"/archives/partial "$new"/kernel "$new"/busybox
printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$mirror" "$suite" >"$new/sources.list"
options=(-q -o "Dir::Etc::SourceList=$new/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o "Dir::State::Lists=$new/lists"
  -o Dir::State::Status=/dev/null -o "Dir::Cache=$new" -o APT::Sandbox::User=root -o Acquire::Languages=none)

say "fetching the kernel of Debian $suite"
apt-get "${options[@]}" update </dev/null >"$new/log" 2>&1 ||
  { tail -n 5 "$new/log" >&2 && fail "the package lists of $suite could not be fetched" "check the network"; }
# The package is empty, and depends on that of the newest kernel.
kernel="$(apt-cache "${options[@]}" depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')"
cd "$new/archives"
apt-get "${options[@]}" download "${kernel:?the kernel has no package}" busybox-static </dev/null >&2
dpkg-deb -x linux-image-*.deb "$new/kernel"
dpkg-deb -x busybox-static_*.deb "$new/busybox"
rm -rf "$new"/lists "$new"/archives "$new"/sources.list "$new"/log "$new"/*.bin "$directory"
touch "$new/complete"
mv "$new" "$directory"
say "fetched: $kernel"
