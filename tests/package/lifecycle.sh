#!/bin/bash
# Runs as root on a bare Debian: installs, uses, upgrades, removes and purges two versions of the package.
#   lifecycle.sh OLD.deb NEW.deb
set -euo pipefail
old="$1" new="$2"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

step() { printf '== %s\n' "$*"; }
die() { printf 'failed: %s\n' "$*" && exit 1; }
# Everything that a package could leave behind, except what dpkg itself notes and what a login session has in /run/user.
files() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /mnt -o -path /carrel -o -path /with -o -path /tmp -o -path /root -o -path /run/user \
    -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \) -prune -o -print | sort
}
# Processes of the package, by their program: `carrel serve`, shims and agents.
processes() {
  local process
  for process in /proc/[0-9]*; do
    [[ "$(readlink "$process/exe" || true)" != */carrel* ]] || tr '\0' ' ' <"$process/cmdline" || true
  done
}

files >/tmp/before

step "install"
dpkg --install "$old"
[[ "$(carrel --version)" == carrel\ * ]] || die "carrel --version"
[[ "$(sandbox-agent --version)" == sandbox-agent\ * ]] || die "sandbox-agent --version"
dpkg --verify carrel
/carrel/tests/package/completions.sh /usr vendor-completions
for page in carrel carrel-run carrel-store-backup sandbox-agent sandbox-agent-sessions-create; do
  [[ -s "/usr/share/man/man1/$page.1.gz" ]] || die "no manual page $page"
done
carrel doctor

step "the demo of the README"
# Its last block `sh run`, as it is installed; the first one needs a clone.
demo="$(awk '/^```sh run$/ { inside = 1; text = ""; next } /^```$/ { inside = 0 } inside { text = text $0 "\n" } END { printf "%s", text }' \
  /usr/share/doc/carrel/README.md)"
[[ "$demo" == *"carrel apply"* ]] || die "another block than the demo: $demo"
shown="$(bash -euo pipefail -c "$demo")" || die "the demo: $shown"
[[ "$shown" == *"+    return 42"* ]] || die "the demo showed no patch: $shown"

step "use"
[[ "$(carrel run host -- sh -c 'echo $((6 * 7))')" == 42 ]] || die "carrel run"
carrel create --id demo host
carrel exec demo -- sh -c 'echo kept >note'

step "upgrade: a running sandbox continues"
started="$(carrel exec demo -- stat -c %Y /proc/1)"
dpkg --install "$new"
[[ "$(carrel exec demo -- cat note)" == kept ]] || die "the disk after an upgrade"
[[ "$(carrel exec demo -- stat -c %Y /proc/1)" == "$started" ]] || die "the upgrade restarted the sandbox"

step "remove: sandboxes stop, and their disks stay"
dpkg --remove carrel
[[ -z "$(processes)" ]] || die "processes after a removal: $(processes)"
[[ ! -e /usr/bin/carrel && ! -e /usr/libexec/carrel ]] || die "programs after a removal"
dpkg --install "$new"
carrel resume demo
[[ "$(carrel exec demo -- cat note)" == kept ]] || die "the disk after a removal"

step "purge: nothing is left"
dpkg --purge carrel
[[ -z "$(processes)" ]] || die "processes after a purge: $(processes)"
files >/tmp/after
diff /tmp/before /tmp/after || die "files after a purge"
step "done"
