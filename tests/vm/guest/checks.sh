# What the command line does on control groups of v2, in the words of Rust's test harness. Each check is a function
# whose name is a sentence; it fails with the first command that fails.

export CARREL_HOME=/var/lib/carrel
groups=/sys/fs/cgroup/carrel
carrel="$CARREL_BIN"

. "$(dirname "$0")/harness.sh"

nothing_is_left() {
  expect "$(ls -d "$groups"/*/ 2>/dev/null)" "" &&
    expect "$(ls "$CARREL_HOME/run/sandboxes" 2>/dev/null)" "" &&
    expect "$(ps -o comm | grep -c '^carrel')" 0
}

# started WORDS…: begins `carrel run` with them, whose command says "ready" once it is; its input is open at 4.
started() {
  rm -f /tmp/input /tmp/said
  mkfifo /tmp/input /tmp/said
  exec 4<>/tmp/input 5<>/tmp/said
  "$carrel" run "$@" </tmp/input >/tmp/said 4>&- 5>&- &
  running=$!
  read -r -t 60 line <&5
  expect "$line" ready
}

v2_alone_has_every_controller() {
  expect "$(grep -c ' - cgroup ' /proc/self/mountinfo)" 0
  for controller in memory pids cpu; do
    grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers
  done
}

the_doctor_finds_v2_and_a_host_that_runs_sandboxes() {
  status "$carrel" doctor
  expect "$code" 0
  for limit in "memory limit" "process limit" "processor limit" "pause"; do
    grep -q "^ok  *$limit  *cgroup v2.*, /sys/fs/cgroup$" /tmp/out
  done
  grep -q "^ok  *sandbox " /tmp/out
  nothing_is_left
}

a_memory_bomb_ends_and_what_fits_does_not() {
  status "$carrel" run --memory 64M /image -- tail /dev/zero
  expect "$code" 137
  grep -q "OOM-killed (memory limit 64 MiB)" /tmp/err
  # The control: as much as fits, and the same bomb's bytes where there is room.
  status "$carrel" run --memory 64M /image -- dd if=/dev/zero of=/dev/null bs=16M count=1
  expect "$code" 0
  status "$carrel" run --memory 64M /image -- dd if=/dev/zero of=/dev/null bs=128M count=1
  expect "$code" 137
  status "$carrel" run --memory 256M /image -- dd if=/dev/zero of=/dev/null bs=128M count=1
  expect "$code" 0
  nothing_is_left
}

what_is_written_to_the_disk_counts_as_memory() {
  fill='dd if=/dev/zero of=/tmp/fill bs=1M count=128 && echo all'
  status "$carrel" run --memory 64M --disk 256M /image -- sh -c "$fill"
  [ "$code" != 0 ]
  status "$carrel" run --memory 256M --disk 256M /image -- sh -c "$fill"
  expect "$code" 0
  nothing_is_left
}

what_waits_in_sockets_counts_as_memory() {
  started --memory 256M host -- python3 /usr/share/sockets.py 48
  counted="$(sed -n 's/^sock //p' "$groups"/*/memory.stat)"
  echo "$counted bytes are counted"
  [ "$counted" -ge $((32 << 20)) ]
  echo go >&4
  wait $running
  # The kernel ends who wants more, or lets it wait; it does not hold what does not fit.
  status "$carrel" run --memory 32M --timeout 20s host -- python3 /usr/share/sockets.py 48
  [ "$code" = 137 ] || expect "$code" 124
  nothing_is_left
}

a_fork_bomb_stops_at_its_limit() {
  bomb='i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; echo $i'
  status "$carrel" run --pids 32 /image -- sh -c "$bomb"
  [ "$code" != 0 ]
  grep -q fork /tmp/err
  status "$carrel" run --pids 256 /image -- sh -c "$bomb"
  expect "$code $(cat /tmp/out)" "0 100"
  nothing_is_left
}

a_share_of_the_processors_holds_a_loop_back() {
  loop='i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo ready; read line'
  for share in 0.2 ""; do
    started ${share:+--cpus $share} /image -- sh -c "$loop"
    # The group itself says how often the loop had to wait.
    group="$(ls -d "$groups"/*/)"
    throttled="$(sed -n 's/^nr_throttled //p' "$group/cpu.stat")"
    echo "share ${share:-all}: $(cat "$group/cpu.max"), throttled $throttled times"
    echo go >&4
    wait $running
    if [ -n "$share" ]; then [ "$throttled" -gt 0 ]; else expect "$throttled" 0; fi
  done
  nothing_is_left
}

a_sandbox_is_born_in_its_group_and_sees_it_as_the_root() {
  status "$carrel" run /image -- cat /proc/self/cgroup
  expect "$(cat /tmp/out)" "0::/"
  nothing_is_left
}

a_run_that_is_killed_leaves_nothing() {
  started /image -- sh -c 'trap "" TERM INT HUP; echo ready; while :; do sleep 1; done'
  kill -KILL $running
  wait $running || expect "$?" 137
  # Its supervisor is on its own now, and ends with what it watched.
  tries=0
  until nothing_is_left >/dev/null || [ $tries -ge 1000 ]; do usleep 20000; tries=$((tries+1)); done
  nothing_is_left
}

run_checks $(sed -n 's/^\([a-z0-9_]*\)() {$/\1/p' "$0" | grep -vx -e nothing_is_left -e started)
