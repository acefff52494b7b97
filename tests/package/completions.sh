#!/bin/bash
# The completions of both commands are below a prefix, and load in the shells that are here.
#   completions.sh PREFIX site-functions|vendor-completions
set -euo pipefail
share="$1/share" zsh="$2"
die() { printf 'failed: %s\n' "$*" && exit 1; }

for command in carrel/doctor sandbox-agent/sessions; do
  # One of its subcommands, which each shell offers.
  sub="${command#*/}" command="${command%/*}"
  for file in "bash-completion/completions/$command" "zsh/$zsh/_$command" "fish/vendor_completions.d/$command.fish"; do
    [[ -s "$share/$file" ]] || die "no $share/$file"
    grep -q "$sub" "$share/$file" || die "$share/$file does not know $command $sub"
  done
  bash -n "$share/bash-completion/completions/$command" || die "the completions for bash"
  bash --norc -c '
    source "$1"
    function="$(complete -p "$2" | sed "s/.* -F \([^ ]*\) .*/\1/")"
    COMP_WORDS=("$2" "${3%?}") COMP_CWORD=1
    "$function" "$2" "${3%?}" "$2"
    [[ " ${COMPREPLY[*]} " == *" $3 "* ]]
  ' bash "$share/bash-completion/completions/$command" "$command" "$sub" || die "bash does not complete $command $sub"
  if command -v zsh >/dev/null; then
    zsh -f -c '
      zsh -n "$1/_$2" && fpath=("$1" $fpath) && autoload -Uz compinit && compinit -D -u && [[ "$_comps[$2]" == "_$2" ]]
    ' zsh "$share/zsh/$zsh" "$command" || die "zsh does not load the completions of $command"
  fi
  if command -v fish >/dev/null; then
    fish --no-config -c 'source $argv[1]; complete -C "$argv[2] " | string match --quiet "$argv[3]*"' \
      "$share/fish/vendor_completions.d/$command.fish" "$command" "$sub" || die "fish does not complete $command $sub"
  fi
done
