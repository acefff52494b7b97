#!/usr/bin/env bash
# Makes an image of a Debian with Python, once, and says where it is: an OCI layout with the tag `it`.
#
#   tests/images/python.sh       leaves it below $CARREL_CACHE/images, by what it is made from
set -euo pipefail
CARREL_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export CARREL_CACHE="${CARREL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/carrel}"
. "$CARREL_ROOT/scripts/setup.sh"

suite="$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-bookworm}")"
key="$({ cat "${BASH_SOURCE[0]}" && printf '%s' "$suite" && uname -m; } | sha256sum | cut -c 1-16)"
place="$CARREL_CACHE/images/python-$suite-$key"
mkdir -p "$CARREL_CACHE/images"
exec 9>"$place.lock"
flock 9
if [[ ! -e "$place/index.json" ]]; then
  new="$(mktemp -d "$place.XXXXXX")"
  trap 'rm -rf --one-file-system "$new"' EXIT
  # The archive is the one that this system comes from.
  targets=('Created-By: Packages' 'Origin: Debian' 'Label: Debian')
  mirror="$(apt-get indextargets --format '$(REPO_URI)' "${targets[@]}" | sed -n 1p)"
  say "making an image of Debian $suite with Python"
  # Devices are the sandbox's own, and none of an image's.
  mmdebstrap --quiet --variant=minbase --include=python3-minimal --skip=output/dev "$suite" "$new/root.tar" ${mirror:+"$mirror"} >&2
  umoci init --layout "$new/layout" >&2
  umoci new --image "$new/layout:it" >&2
  umoci raw add-layer --image "$new/layout:it" "$new/root.tar" >&2
  umoci config --image "$new/layout:it" --config.cmd /usr/bin/python3 >&2
  umoci gc --layout "$new/layout" >&2
  mv "$new/layout" "$place"
fi
printf '%s\n' "$place"
