# Runs checks, and prints their results as Rust's test harness does.

# expect FOUND EXPECTED: fails if they differ.
expect() {
  [ "$1" = "$2" ] || { echo "expected: $2"; echo "found: $1"; return 1; }
}

# status COMMAND…: runs it, and keeps its exit code in $code and its output in /tmp/out and /tmp/err.
status() {
  code=0
  "$@" >/tmp/out 2>/tmp/err || code=$?
  echo "$code: $*"
  cat /tmp/out /tmp/err
}

# run_checks CHECK…: runs functions, each in its own shell; fails if one of them does.
run_checks() {
  echo "running $# tests"
  failed=""
  for check; do
    began="$(cut -d' ' -f1 /proc/uptime)"
    result=ok
    # Its own shell: `set -e` has no effect where the status is tested.
    (set -e; "$check") >"/tmp/$check" 2>&1 &
    wait $! || { result=FAILED; failed="$failed $check"; }
    took="$(echo "$began $(cut -d' ' -f1 /proc/uptime)" | awk '{printf "%.2f", $2 - $1}')"
    echo "test $check ... $result <${took}s>"
  done
  echo
  echo "failures:"
  for check in $failed; do
    echo "---- $check stdout ----"
    cat "/tmp/$check"
  done
  echo
  echo "failures:"
  echo "test result: ${failed:+FAILED}"
  [ -z "$failed" ]
}
