#!/usr/bin/env bash
# Makes the root file system of a Debian with systemd, for a machine that is rebooted, and says where it is. It is kept for
# as long as this recipe stays the same.
#
#   tests/vm/systemd.sh bookworm|trixie       leaves a tar archive below $CARREL_CACHE/vm
set -euo pipefail
suite="${1:?which Debian: bookworm or trixie}"
CARREL_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export CARREL_CACHE="${CARREL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/carrel}"
. "$CARREL_ROOT/scripts/setup.sh"

recipe="$(sha256sum "${BASH_SOURCE[0]}" | cut -c1-16)"
place="$CARREL_CACHE/vm/systemd-$suite-$recipe.tar"
mkdir -p "$CARREL_CACHE/vm"
exec 9>"$CARREL_CACHE/vm/systemd-$suite.lock"
flock 9
if [[ ! -e "$place" ]]; then
  has mmdebstrap || install_missing mmdebstrap
  new="$(mktemp "$place.XXXXXX")"
  trap 'rm -f "$new"' EXIT
  # The archive is the one that this system comes from.
  targets=('Created-By: Packages' 'Origin: Debian' 'Label: Debian')
  mirror="$(apt-get indextargets --format '$(REPO_URI)' "${targets[@]}" | sed -n 1p)"
  say "making a Debian $suite with systemd"
  mmdebstrap --quiet --variant=minbase --include=systemd-sysv --skip=output/dev --format=tar "$suite" "$new" \
    ${mirror:+"$mirror"} </dev/null >&2
  chmod 644 "$new"
  rm -f "$CARREL_CACHE/vm/systemd-$suite"-*.tar
  mv "$new" "$place"
fi
printf '%s\n' "$place"
