#!/usr/bin/env bash
# Functions of run.sh and measure.sh: they start a real vLLM pair and routers, and stop them whatever happens.
# To be sourced, with the arguments PAIR_DIR [VERSION].
set -euo pipefail
if [ $# -lt 1 ] || [ $# -gt 2 ] || [ -z "$1" ]; then
  echo "usage: VLLM_PAIR=DIR $0 PAIR_DIR [VERSION]" >&2
  exit 2
fi
pair=$(cd "$1" && pwd) version=${2:-0.33.0}
launcher=${VLLM_PAIR:?the folder with start.sh, see scripts/interop/README.md}/start.sh
launcher=$(cd "$(dirname "$launcher")" && pwd)/start.sh
[ -x "$launcher" ] || { echo "$launcher cannot be run" >&2; exit 2; }
cd "$(dirname "$0")/../.."

ttl=${TTL:-120}             # seconds that D keeps a turn; tarik needs more than 30
p_port=${P_PORT:-8100} p_side=${P_SIDE:-5600} d_port=${D_PORT:-8200} d_side=${D_SIDE:-5700}
listen=127.0.0.1:${PORT:-8080} admin=127.0.0.1:${ADMIN_PORT:-9091}
logs=${LOGS:-$(mktemp -d)}
mkdir -p bin "$logs"
go build -o bin/tarik ./cmd/tarik

groups=() routers=()
stop() {
  local status=$? group router
  trap - EXIT INT TERM
  for router in "${routers[@]}"; do kill "$router" 2>/dev/null || true; wait "$router" 2>/dev/null || true; done
  for group in "${groups[@]}"; do kill -- "-$group" 2>/dev/null || true; done
  for group in "${groups[@]}"; do
    for _ in $(seq 50); do kill -0 -- "-$group" 2>/dev/null || break; sleep 0.2; done
    kill -KILL -- "-$group" 2>/dev/null || true
  done
  if [ "$status" -eq 0 ] && [ -z "${LOGS:-}" ]; then rm -rf "$logs"; else echo "logs: $logs"; fi
  exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# group is what start.sh printed: the number of the process group that is stopped at the end.
start() {
  local role=$1 port=$2 side=$3 extra=$4 group
  group=$("$launcher" "$pair" "$role" "$port" "$side" "$version" "$extra" | tail -n 1)
  [[ $group =~ ^[1-9][0-9]+$ ]] || { echo "start.sh printed '$group', not a process group" >&2; exit 3; }
  groups+=("$group")
  echo "$role: process group $group"
}

# wait_for URL SECONDS ALIVE…: until URL answers; fails early when the command ALIVE does.
wait_for() {
  local url=$1 limit=$2 end
  shift 2
  end=$((SECONDS + limit))
  until python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "$url" 2>/dev/null; do
    "$@" 2>/dev/null || { echo "it ended before it answered at $url" >&2; exit 3; }
    [ "$SECONDS" -lt "$end" ] || { echo "nothing answers at $url after $limit s" >&2; exit 3; }
    sleep 1
  done
}

# start_pair starts both engines and waits until they answer.
start_pair() {
  local p_extra='{}' d_extra="{\"decoder_kv_blocks_ttl\":$ttl}"
  start prefill "$p_port" "$p_side" "${P_EXTRA:-$p_extra}"
  start decode "$d_port" "$d_side" "${D_EXTRA:-$d_extra}"
  wait_for "http://127.0.0.1:$p_port/health" "${START_LIMIT:-600}" kill -0 -- "-${groups[0]}"
  wait_for "http://127.0.0.1:$d_port/health" "${START_LIMIT:-600}" kill -0 -- "-${groups[1]}"
  spread
}

# spread gives each engine a core of its own. vLLM on CPUs binds the workers of all engines to the same one, and there an
# engine that spins, as it does while it keeps anything for its peer, starves the other for tens of seconds.
spread() {
  local group worker core=0
  command -v taskset pgrep >/dev/null || return 0
  for group in "${groups[@]}"; do
    for worker in $(pgrep -g "$group" -f VLLM::Worker || true); do
      if [[ $(taskset -pc "$worker") =~ :\ [0-9]+$ ]]; then taskset -apc "$core" "$worker" >/dev/null; fi
    done
    core=$(((core + 1) % $(nproc)))
  done
}

# start_router LISTEN ADMIN NAME FLAGS…: its log and receipts are $logs/NAME.log and NAME.jsonl.
start_router() {
  bin/tarik serve --prefill "http://127.0.0.1:$p_port" --decode "http://127.0.0.1:$d_port" --handle-ttl "${ttl}s" \
    --listen "$1" --admin "$2" --receipts "$logs/$3.jsonl" "${@:4}" >"$logs/$3.log" 2>&1 &
  routers+=("$!")
  wait_for "http://$1/v1/models" 60 kill -0 "$!"
}
