# What becomes of sandboxes when their host reboots in order, and when it loses power: one part for each boot. It is run by a
# unit that is started after those of Carrel, and says what it finds to the second serial line (tests/vm/report.py).
#
# Two sandboxes: `never` is left alone by its restart policy, `onboot` is resumed at boot.

export CARREL_HOME=/var/lib/carrel LC_ALL=C.UTF-8
carrel=/usr/local/bin/carrel
boots=/var/lib/boots
. /opt/harness.sh

# state NAME: what a sandbox is.
state() {
  "$carrel" get "$1" | sed -n 's/^state *//p'
}

# until_state NAME STATE: waits until a sandbox is in a state, for a minute at most.
until_state() {
  tries=0
  until [ "$(state "$1")" = "$2" ] || [ $tries -ge 120 ]; do sleep 0.5; tries=$((tries+1)); done
  expect "$(state "$1")" "$2"
}

# events_of NAME COUNT: its last events in a line: what happened, and why.
events_of() {
  "$carrel" events "$1" | awk '{print $3, ($3 ~ /STOP/) ? $4 : ""}' | tail -n "$2" | xargs
}

# written NAME FILE: writes a file in a sandbox, and returns when it is on the disk.
written() {
  status "$carrel" exec "$1" -- sh -c "echo $2 >$2 && sync $2"
  expect "$code" 0
}

# kept NAME FILE: what was written is there.
kept() {
  status "$carrel" exec "$1" -- cat "$2"
  expect "$(cat /tmp/out)" "$2"
}

# busy NAME: leaves a command running.
busy() {
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
    written "$name" first
    busy "$name"
  done
}

# after an orderly reboot

an_orderly_reboot_stops_sandboxes_with_the_reason() {
  expect "$(events_of never 3)" "SANDBOX_STOP_REQUESTED host_shutdown EXEC_FAILED SANDBOX_STOPPED host_shutdown"
  expect "$(state never)" stopped
}

one_that_restarts_on_boot_runs_again_with_what_it_wrote() {
  until_state onboot ready
  expect "$(events_of onboot 5)" \
    "SANDBOX_STOP_REQUESTED host_shutdown EXEC_FAILED SANDBOX_STOPPED host_shutdown SANDBOX_ACCEPTED SANDBOX_READY"
  kept onboot first
}

the_other_one_is_resumed_by_hand_with_what_it_wrote() {
  status "$carrel" resume never
  expect "$code" 0
  kept never first
}

both_work_until_the_power_fails() {
  for name in never onboot; do
    written "$name" second
    busy "$name"
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
    kept "$name" first
    kept "$name" second
  done
}

the_store_fits_together() {
  status "$carrel" store check
  expect "$code" 0
}

# boot SUITE CHECK…: says how the checks of a boot went, and writes down that the next one is another.
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
      one_that_restarts_on_boot_runs_again_with_what_it_wrote the_other_one_is_resumed_by_hand_with_what_it_wrote \
      both_work_until_the_power_fails
    # Nothing is synced and nothing is ended from here on.
    echo "@ cut"
    sleep 1000
    ;;
  *)
    boot after_a_power_cut a_power_cut_stops_sandboxes_with_the_reason what_was_on_the_disk_is_there \
      the_store_fits_together
    echo "@ done"
    systemctl --no-block poweroff
    ;;
esac
