# Sandboxes across an orderly reboot and a power cut of their host: one part for each boot. A unit that starts after those of
# Carrel runs it; tests/vm/report.py reads its output on the second serial line.
#
# Two sandboxes: `never` has the restart policy never, `onboot` is resumed at boot.

export CARREL_HOME=/var/lib/carrel LC_ALL=C.UTF-8
carrel=/usr/local/bin/carrel
boots=/var/lib/boots
. /opt/harness.sh

# state NAME: prints the state of a sandbox.
state() {
  "$carrel" get "$1" | sed -n 's/^state *//p'
}

# until_state NAME STATE: waits until a sandbox is in a state, for a minute at most.
until_state() {
  tries=0
  until [ "$(state "$1")" = "$2" ] || [ $tries -ge 120 ]; do sleep 0.5; tries=$((tries+1)); done
  expect "$(state "$1")" "$2"
}

# events_of NAME COUNT: prints its last events in one line, with the reasons of stops.
events_of() {
  "$carrel" events "$1" | awk '{print $3, ($3 ~ /STOP/) ? $4 : ""}' | tail -n "$2" | xargs
}

# write_synced NAME FILE: writes a file in a sandbox, and syncs it.
write_synced() {
  status "$carrel" exec "$1" -- sh -c "echo $2 >$2 && sync $2"
  expect "$code" 0
}

# check_file NAME FILE: checks that the written file is there.
check_file() {
  status "$carrel" exec "$1" -- cat "$2"
  expect "$(cat /tmp/out)" "$2"
}

# run_detached NAME: leaves a command running.
run_detached() {
  status "$carrel" exec --detach "$1" -- sleep 100000
  expect "$code" 0
}

# first boot

sandboxes_of_both_policies_run() {
  status "$carrel" create --id never host
  expect "$code" 0
  status "$carrel" create --id onboot --restart on-boot host
  expect "$code" 0
  for name in never onboot; do
    write_synced "$name" first
    run_detached "$name"
  done
}

# after an orderly reboot

an_orderly_reboot_stops_sandboxes_with_the_reason() {
  expect "$(events_of never 3)" "SANDBOX_STOP_REQUESTED host_shutdown EXEC_FAILED SANDBOX_STOPPED host_shutdown"
  expect "$(state never)" stopped
}

a_sandbox_that_restarts_on_boot_runs_with_its_files() {
  until_state onboot ready
  expect "$(events_of onboot 5)" \
    "SANDBOX_STOP_REQUESTED host_shutdown EXEC_FAILED SANDBOX_STOPPED host_shutdown SANDBOX_ACCEPTED SANDBOX_READY"
  check_file onboot first
}

a_sandbox_that_does_not_restart_is_resumed_by_request_with_its_files() {
  status "$carrel" resume never
  expect "$code" 0
  check_file never first
}

both_sandboxes_work_before_the_power_cut() {
  for name in never onboot; do
    write_synced "$name" second
    run_detached "$name"
  done
}

# after a power cut

a_power_cut_stops_sandboxes_with_the_reason() {
  until_state never stopped
  expect "$(events_of never 3)" "SANDBOX_STOP_REQUESTED host_restarted EXEC_FAILED SANDBOX_STOPPED host_restarted"
  until_state onboot ready
  expect "$(events_of onboot 5)" \
    "SANDBOX_STOP_REQUESTED host_restarted EXEC_FAILED SANDBOX_STOPPED host_restarted SANDBOX_ACCEPTED SANDBOX_READY"
}

what_was_on_the_disk_is_there() {
  status "$carrel" resume never
  expect "$code" 0
  for name in never onboot; do
    check_file "$name" first
    check_file "$name" second
  done
}

the_store_is_consistent() {
  status "$carrel" store check
  expect "$code" 0
}

# boot SUITE CHECK…: runs the checks of a boot, and records that it is done.
boot() {
  suite="$1"
  shift
  echo "$suite" >>$boots
  sync $boots
  echo "@ kernel $(uname -r)"
  echo "@ suite $suite plain"
  run_checks "$@"
  echo "@ end $?"
}

stty -F /dev/ttyS1 raw -echo
exec </dev/null >/dev/ttyS1 2>&1
case "$(cat $boots 2>/dev/null | wc -l)" in
  0)
    boot first_boot sandboxes_of_both_policies_run
    systemctl --no-block reboot
    ;;
  1)
    boot after_a_reboot an_orderly_reboot_stops_sandboxes_with_the_reason \
      a_sandbox_that_restarts_on_boot_runs_with_its_files a_sandbox_that_does_not_restart_is_resumed_by_request_with_its_files \
      both_sandboxes_work_before_the_power_cut
    # From here on, nothing is synced and no process is stopped.
    echo "@ cut"
    sleep 1000
    ;;
  *)
    boot after_a_power_cut a_power_cut_stops_sandboxes_with_the_reason what_was_on_the_disk_is_there \
      the_store_is_consistent
    echo "@ done"
    systemctl --no-block poweroff
    ;;
esac
