#!/usr/bin/env bash
# Runs `oases train` on two hosts, made of network namespaces that a slow link joins: tests/two_hosts.sh [PROGRAM]
#
# Needs root, iproute2 and Open MPI, and PROGRAM built with --features mpi. Where namespaces are not allowed it says so and ends
# with 0. Checks that the losses are those of one process, to the bit with as many ranks as threads; that kill -9 of a rank
# ends all others; and that the run then goes on as if nothing had been. OASES_TEST_KILLS is the number of kills, else 1.
set -euo pipefail
cd "$(dirname "$0")/.."

# As mpirun's remote shell: run a command on a host. The options of ssh mean nothing here.
if [[ ${1:-} == --agent ]]; then
    shift
    while [[ $1 == -* ]]; do shift; done
    host=$1
    shift
    # A host that has another folder of this name.
    hide=${OASES_TEST_HIDE:+mount -t tmpfs tmpfs $OASES_TEST_HIDE;}
    exec ip netns exec "$OASES_TEST_NET-${host##*.}" unshare --uts --mount bash -c "hostname host-${host##*.}; $hide $*"
fi

program=$(realpath "${1:-target/release/oases}")
export OASES_TEST_NET=oases-test-$$
timeout_s=8
kills=${OASES_TEST_KILLS:-1}
folder=$(mktemp -d)

skip() {
    echo "two_hosts.sh skipped: $1"
    exit 0
}
fail() {
    echo "two_hosts.sh failed: $1" >&2
    tail -n 20 "$folder"/*.txt >&2
    exit 1
}
clean_up() {
    local host process
    for host in 1 2; do
        for process in $(ip netns pids "$OASES_TEST_NET-$host" 2>/dev/null); do kill -9 "$process" 2>/dev/null || true; done
        ip netns del "$OASES_TEST_NET-$host" 2>/dev/null || true
    done
    umount "$folder/small" 2>/dev/null || true
    rm -rf "$folder"
}
trap clean_up EXIT

command -v mpirun.openmpi >/dev/null || skip "there is no Open MPI"
command -v ip >/dev/null && command -v tc >/dev/null || skip "there is no iproute2"
unshare --uts true 2>/dev/null || skip "namespaces are not allowed"
for host in 1 2; do
    ip netns add "$OASES_TEST_NET-$host" 2>/dev/null || skip "network namespaces are not allowed"
done
ip link add eth0 netns "$OASES_TEST_NET-1" type veth peer name eth0 netns "$OASES_TEST_NET-2" ||
    skip "virtual links are not allowed"
for host in 1 2; do
    ip -n "$OASES_TEST_NET-$host" addr add "10.98.0.$host/24" dev eth0
    ip -n "$OASES_TEST_NET-$host" link set lo up
    ip -n "$OASES_TEST_NET-$host" link set eth0 up
    tc -n "$OASES_TEST_NET-$host" qdisc add dev eth0 root tbf rate 1gbit burst 256kb latency 20ms 2>/dev/null ||
        echo "the kernel cannot shape links: this one is fast"
done

# A small run, whose learning rate does not depend on its length; the first argument is its folder, in $folder.
options() {
    echo configs/quickstart.toml --set model.layers=2 --set model.hidden=64 --set model.heads=4 --set model.sequence=64 \
        --set model.dropout=0.1 --set train.batch=8 --set train.eval_every=1000 --set "train.steps=${steps:-12}" \
        --set train.checkpoint_every=4 --set train.warmup=0 --set train.final_learning_rate=1 --set "run.timeout_s=$timeout_s" --set "run.dir=$folder/$1"
}
one_process() {
    # shellcheck disable=SC2046
    "$program" train $(options "$1") "${@:2}" >"$folder/$1.txt" 2>&1
}
two_hosts() {
    # shellcheck disable=SC2046
    ip netns exec "$OASES_TEST_NET-1" unshare --uts bash -c 'hostname host-1; exec "$@"' _ \
        timeout 300 mpirun.openmpi --allow-run-as-root --bind-to none -np 2 -H 10.98.0.1,10.98.0.2 \
        --mca plm_rsh_agent "$PWD/tests/two_hosts.sh --agent" --mca pml ob1 --mca btl tcp,self \
        --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
        "$program" train $(options "$1") "${@:2}" >>"$folder/$1.txt" 2>&1
}
losses() {
    sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$folder/$1/metrics.jsonl"
}

one_process single --set parallel.tensor=1 || fail "the run of one rank"
one_process threads || fail "the run of two threads"
two_hosts hosts || fail "the run of two hosts"
[[ $(losses hosts) == "$(losses threads)" ]] || fail "two hosts have other losses than two threads"
cmp -s "$folder"/{hosts,threads}/checkpoints/step-00000012.safetensors || fail "two hosts write another checkpoint"
paste <(losses single) <(losses hosts) |
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 2e-5) wrong = 1 } END { exit wrong || NR != 12 }' ||
    fail "two hosts have other losses than one rank"

# The processes of the run in a folder, without mpirun and shells.
ranks_of() {
    local process
    for process in $(pgrep -f "run.dir=$folder/$1( |\$)"); do
        [[ $(cat "/proc/$process/comm" 2>/dev/null) != oases ]] || echo "$process"
    done
}
newest() {
    ls "$folder/$1/checkpoints" 2>/dev/null | sed -n 's/^step-0*\([0-9]*\).safetensors$/\1/p' | sort -n | tail -1
}
# kills RUNNER NAME OPTIONS…: starts a run and kills one of its ranks with SIGKILL at a random moment, $kills times, each going on from the
# last; then lets it end, and compares all of its losses with those of a run that nobody disturbed.
kills() {
    local runner=$1 name=$2 run victim rank killed_at resume=() number
    shift 2
    for number in $(seq "$kills"); do
        : >"$folder/$name.txt"
        # Far more steps than there is time for, so that the rank is killed in one of them.
        steps=100000 "$runner" "$name" "$@" "${resume[@]}" &
        run=$!
        sleep "$((RANDOM % 4)).$((RANDOM % 1000))"
        until victim=$(ranks_of "$name" | shuf -n 1) && [[ -n $victim ]]; do sleep 0.01; done
        rank=$([[ $(ip netns identify "$victim") == *-2 ]] && echo 1 || echo 0)
        kill -9 "$victim"
        killed_at=$(date +%s%N)
        wait "$run" && fail "a run with a killed rank ended well"
        while [[ -n $(ranks_of "$name") ]]; do
            (($(date +%s%N) - killed_at < (timeout_s + 4) * 1000000000)) || fail "kill $number: a rank lives on"
            sleep 0.1
        done
        echo "$name, kill $number: rank $rank after step $(newest "$name"); all gone after $((($(date +%s%N) - killed_at) / 1000000)) ms"
        [[ $runner == one_process ]] || grep -q "rank $rank" "$folder/$name.txt" || fail "the killed rank $rank is not named"
        if [[ -n $(newest "$name") ]]; then resume=(--resume); else rm -rf "${folder:?}/$name"; fi
    done
    steps=$(($(newest "$name") + 4))
    steps=$steps "$runner" "$name" "$@" "${resume[@]}" || fail "the run did not go on"
    steps=$steps one_process "$name-undisturbed" "$@" || fail "the undisturbed run"
    [[ $(losses "$name") == "$(losses "$name-undisturbed")" ]] || fail "the run went on with other losses"
}
kills two_hosts killed
kills one_process killed-threads --set parallel.data=2 --set parallel.pipeline=2 --set schedule.micro_batches=2

# A signal to a rank, or one that mpirun passes on, stops both with a checkpoint.
stops() {
    local name=$1 signal=$2 run
    steps=100000 two_hosts "$name" &
    run=$!
    for _ in $(seq 600); do
        [[ -e $folder/$name/checkpoints/step-00000004.safetensors ]] && break
        sleep 0.1
    done
    kill "-$signal" $($3)
    wait "$run" || fail "a run that was asked to stop failed"
    grep -q 'stopped after step .* with --resume' "$folder/$name.txt" || fail "it is not said how to go on"
}
rank_1() { for process in $(ranks_of stopped); do [[ $(ip netns identify "$process") != *-2 ]] || echo "$process"; done; }
launcher() { pgrep -x -f "mpirun.openmpi .*run.dir=$folder/passed-on"; }
stops stopped TERM rank_1
stops passed-on USR1 launcher

# What the user can mend ends with 2 on all ranks, is told once, and leaves nothing.
refused() {
    local name=$1 message=$2 code=0
    shift 2
    "$@" || code=$?
    [[ $code == 2 ]] || fail "$name ended with $code"
    [[ $(grep -c '^error' "$folder/$name.txt") == 1 ]] && grep -q "$message" "$folder/$name.txt" || fail "$name is not told once"
}
: >"$folder/hosts.txt"
refused hosts 'already holds a run' two_hosts hosts
# shellcheck disable=SC2030
(
    export OASES_TEST_HIDE=$folder
    refused hidden 'does not see the run folder' two_hosts hidden
)
[[ ! -e $folder/hidden ]] || fail "a run that was refused leaves its folder"

# A full disk is what every rank tells of, and the checkpoints before are whole.
mkdir "$folder/small"
if mount -t tmpfs -o size=2M tmpfs "$folder/small"; then
    for number in 1 2 3; do
        one_process "small/run-$number" --set parallel.data=2 --set train.keep_checkpoints=100 && fail "more was written than there is room for"
        grep -q 'No space left on device' "$folder/small/run-$number.txt" || fail "a full disk is told as something else"
        rm -rf "$folder/small"/run-*
    done
    umount "$folder/small"
fi
echo "two_hosts.sh passed: same losses, a killed rank, stops, refusals, a full disk"
