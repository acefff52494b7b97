#!/bin/bash
# ./install below a prefix of its own: the command finds its helpers, a second install replaces, --uninstall leaves nothing.
#   install.sh PROGRAMS
set -euo pipefail
programs="$1"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scratch="$(mktemp -d /var/tmp/carrel-install.XXXXXX)"
trap 'rm -rf --one-file-system "$scratch"' EXIT
prefix="$scratch/prefix"
mkdir -p "$prefix/bin"
echo mine >"$prefix/bin/mine"
die() { printf 'failed: %s\n' "$*" && exit 1; }

./install --prefix "$prefix" --programs "$programs"
export CARREL_HOME="$scratch/home" XDG_RUNTIME_DIR="$scratch/run" PATH="$prefix/bin:/usr/bin:/usr/sbin:/bin:/sbin"
unset CARREL_LIBEXEC
mkdir "$XDG_RUNTIME_DIR"
[[ "$(carrel run host -- sh -c 'echo $((6 * 7))')" == 42 ]] || die "carrel run"
grep -q "ExecStart=$prefix/bin/carrel serve" "$prefix/lib/systemd/system/carrel.service" || die "the unit names another program"
tests/package/completions.sh "$prefix" site-functions
for page in carrel carrel-run carrel-store-backup sandbox-agent sandbox-agent-sessions-create; do
  [[ -s "$prefix/share/man/man1/$page.1.gz" ]] || die "no manual page $page"
done

# The installed documents link nothing that is not installed.
documents="$prefix/share/doc/carrel"
dead="$(PYTHONPATH=tests python3 - "$documents" <<'PYTHON'
import sys
from pathlib import Path
from runner import documents

root = Path(sys.argv[1])
found = documents.documents(root)
assert root / "README.md" in found and root / "docs/guides/run.md" in found, found
print("\n".join(line for page in found for line in documents.broken_links(page, root)))
PYTHON
)" || die "the installed documents cannot be read"
[[ -z "$dead" ]] || die "dead links in $documents: $dead"
[[ -s "$documents/LICENSE" && ! -e "$documents/docs/reference/promises.md" ]] || die "other documents are installed"

# A file of an earlier version goes with the next install; a directory that was there before stays.
echo old >"$prefix/libexec/carrel/carrel-old"
echo "f libexec/carrel/carrel-old" >>"$prefix/share/carrel/installed-files"
./install --prefix "$prefix" --programs "$programs" >/dev/null
[[ ! -e "$prefix/libexec/carrel/carrel-old" ]] || die "a file of the earlier version is left"

# A link that leads out of the prefix is not followed, neither by an install nor by its removal.
mkdir "$scratch/elsewhere" && echo theirs >"$scratch/elsewhere/important"
ln -s "$scratch/elsewhere" "$prefix/etc"
echo "f etc/important" >>"$prefix/share/carrel/installed-files"
if ./install --uninstall --prefix "$prefix" 2>"$scratch/refused"; then die "a link was followed"; fi
grep -q "leads out of" "$scratch/refused" || die "$(cat "$scratch/refused")"
[[ -e "$scratch/elsewhere/important" && -e "$prefix/bin/carrel" ]] || die "something was removed through a link"
sed -i '/important/d' "$prefix/share/carrel/installed-files" && rm "$prefix/etc"
mkdir "$scratch/other" && ln -s "$scratch/elsewhere" "$scratch/other/bin"
if ./install --prefix "$scratch/other" --programs "$programs" 2>/dev/null; then die "a link was followed"; fi
[[ ! -e "$scratch/elsewhere/carrel" ]] || die "something was installed through a link"

./install --uninstall --prefix "$prefix"
[[ "$(find "$prefix" -mindepth 1 | sort)" == "$prefix/bin"$'\n'"$prefix/bin/mine" ]] || die "left: $(find "$prefix")"
if ./install --uninstall --prefix "$prefix" 2>"$scratch/refused"; then die "uninstalled twice"; fi
grep -q "nothing is installed" "$scratch/refused" || die "$(cat "$scratch/refused")"

# A prefix that the install made goes with it.
./install --prefix "$scratch/made/prefix" --programs "$programs" >/dev/null
./install --uninstall --prefix "$scratch/made/prefix"
[[ ! -e "$scratch/made/prefix" ]] || die "left: $(find "$scratch/made/prefix")"
