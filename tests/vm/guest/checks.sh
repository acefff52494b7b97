# The CLI on cgroup v2, with the output of Rust's test harness. Each check is a function whose name is a sentence; it
# fails with the first command that fails.

export CARREL_HOME=/var/lib/carrel
groups=/sys/fs/cgroup/carrel
carrel="$CARREL_BIN"

. "$(dirname "$0")/harness.sh"

check_no_leftovers() {
  expect "$(ls -d "$groups"/*/ 2>/dev/null)" "" &&
    expect "$(ls "$CARREL_HOME/run/sandboxes" 2>/dev/null)" "" &&
    expect "$(ps -o comm | grep -c '^carrel')" 0
}

# start_run ARGUMENT…: starts `carrel run`, and waits until its command writes "ready"; its input is open at 4.
start_run() {
  rm -f /tmp/input /tmp/output
  mkfifo /tmp/input /tmp/output
  exec 4<>/tmp/input 5<>/tmp/output
  "$carrel" run "$@" </tmp/input >/tmp/output 4>&- 5>&- &
  running=$!
  read -r -t 60 line <&5
  expect "$line" ready
}

cgroup_v2_has_every_controller() {
  expect "$(grep -c ' - cgroup ' /proc/self/mountinfo)" 0
  for controller in memory pids cpu; do
    grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers
  done
}

the_doctor_reports_cgroup_v2_and_a_working_host() {
  status "$carrel" doctor
  expect "$code" 0
  for limit in "memory limit" "process limit" "processor limit" "pause"; do
    grep -q "^ok  *$limit  *cgroup v2.*, /sys/fs/cgroup$" /tmp/out
  done
  grep -q "^ok  *sandbox " /tmp/out
  check_no_leftovers
}

a_memory_bomb_is_oom_killed_and_a_smaller_command_is_not() {
  status "$carrel" run --memory 64M /image -- tail /dev/zero
  expect "$code" 137
  grep -q "OOM-killed (memory limit 64 MiB)" /tmp/err
  # The control: less memory, and the same amount with a higher limit.
  status "$carrel" run --memory 64M /image -- dd if=/dev/zero of=/dev/null bs=16M count=1
  expect "$code" 0
  status "$carrel" run --memory 64M /image -- dd if=/dev/zero of=/dev/null bs=128M count=1
  expect "$code" 137
  status "$carrel" run --memory 256M /image -- dd if=/dev/zero of=/dev/null bs=128M count=1
  expect "$code" 0
  check_no_leftovers
}

writes_to_an_ephemeral_disk_count_as_memory() {
  fill='dd if=/dev/zero of=/tmp/fill bs=1M count=128 && echo all'
  status "$carrel" run --memory 64M --disk 256M /image -- sh -c "$fill"
  [ "$code" != 0 ]
  status "$carrel" run --memory 256M --disk 256M /image -- sh -c "$fill"
  expect "$code" 0
  check_no_leftovers
}

data_queued_in_sockets_counts_as_memory() {
  start_run --memory 256M host -- python3 /usr/share/sockets.py 48
  counted="$(sed -n 's/^sock //p' "$groups"/*/memory.stat)"
  echo "$counted bytes are counted"
  [ "$counted" -ge $((32 << 20)) ]
  echo go >&4
  wait $running
  # Above the limit, the kernel kills the process or blocks it; it does not queue more.
  status "$carrel" run --memory 32M --timeout 20s host -- python3 /usr/share/sockets.py 48
  [ "$code" = 137 ] || expect "$code" 124
  check_no_leftovers
}

a_fork_bomb_stops_at_its_limit() {
  bomb='i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; echo $i'
  status "$carrel" run --pids 32 /image -- sh -c "$bomb"
  [ "$code" != 0 ]
  grep -q fork /tmp/err
  status "$carrel" run --pids 256 /image -- sh -c "$bomb"
  expect "$code $(cat /tmp/out)" "0 100"
  check_no_leftovers
}

a_cpu_limit_throttles_a_busy_loop() {
  loop='i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo ready; read line'
  for share in 0.2 ""; do
    start_run ${share:+--cpus $share} /image -- sh -c "$loop"
    # The cgroup counts how often the loop was throttled.
    group="$(ls -d "$groups"/*/)"
    throttled="$(sed -n 's/^nr_throttled //p' "$group/cpu.stat")"
    echo "share ${share:-all}: $(cat "$group/cpu.max"), throttled $throttled times"
    echo go >&4
    wait $running
    if [ -n "$share" ]; then [ "$throttled" -gt 0 ]; else expect "$throttled" 0; fi
  done
  check_no_leftovers
}

a_sandbox_is_created_in_its_cgroup_and_sees_it_as_the_root() {
  status "$carrel" run /image -- cat /proc/self/cgroup
  expect "$(cat /tmp/out)" "0::/"
  check_no_leftovers
}

a_run_that_is_killed_leaves_nothing() {
  start_run /image -- sh -c 'trap "" TERM INT HUP; echo ready; while :; do sleep 1; done'
  kill -KILL $running
  wait $running || expect "$?" 137
  # Its shim is on its own now, and exits after its sandbox.
  tries=0
  until check_no_leftovers >/dev/null || [ $tries -ge 1000 ]; do usleep 20000; tries=$((tries+1)); done
  check_no_leftovers
}

run_checks $(sed -n 's/^\([a-z0-9_]*\)() {$/\1/p' "$0" | grep -vx -e check_no_leftovers -e start_run)
