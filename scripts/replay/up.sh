#!/usr/bin/env bash
# Starts `tarik up` and a reference engine with the same model on loopback, runs scripts/replay against them with
# the arguments given here, and stops both.
#
#   scripts/replay/up.sh --conversations-dir test/conversations
#   MODEL=./SmolLM2-135M-Instruct scripts/replay/up.sh --trace miniswe.jsonl.gz --conversations 2 --max-turns 6
#
# MODEL is a model for the engines (default: the built-in one), AS the vLLM version they imitate, LOGS a folder
# for what they print (default: a temporary one, shown if something fails).
set -euo pipefail
cd "$(dirname "$0")/../.."

logs=${LOGS:-$(mktemp -d)}
model=()
[ -z "${MODEL:-}" ] || model=(--model "$MODEL")
mkdir -p bin "$logs"
go build -o bin/tarik ./cmd/tarik
go build -o bin/replay ./scripts/replay

# Three free ports. They could be taken before the servers bind them; then those say so.
read -r front admin reference < <(python3 -c '
import socket
s = [socket.socket() for _ in range(3)]
for x in s: x.bind(("127.0.0.1", 0))
print(*(x.getsockname()[1] for x in s))')

pids=()
stop() {
  local status=$?
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  if [ $status -gt 1 ]; then tail -n 20 "$logs"/*.log >&2; fi
  [ -n "${LOGS:-}" ] || rm -rf "$logs"
  exit $status
}
trap stop EXIT

bin/tarik up --listen "127.0.0.1:$front" --admin "127.0.0.1:$admin" --as "${AS:-vllm-0.33}" "${model[@]}" >"$logs/up.log" 2>&1 &
pids+=($!)
bin/tarik engine --role prefill --listen "127.0.0.1:$reference" --as "${AS:-vllm-0.33}" --no-kv-transfer "${model[@]}" >"$logs/reference.log" 2>&1 &
pids+=($!)

# wait_for URL PID: until it answers, or its process ends, or a minute is over.
wait_for() {
  for _ in $(seq 300); do
    if python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)' "$1" 2>/dev/null; then return 0; fi
    kill -0 "$2" 2>/dev/null || { echo "a server ended before it answered at $1" >&2; return 3; }
    sleep 0.2
  done
  echo "nothing answers at $1" >&2
  return 3
}
wait_for "http://127.0.0.1:$front/v1/models" "${pids[0]}" || exit 3
wait_for "http://127.0.0.1:$reference/v1/models" "${pids[1]}" || exit 3

status=0
bin/replay --router "http://127.0.0.1:$front" --admin "http://127.0.0.1:$admin" --reference "http://127.0.0.1:$reference" "$@" || status=$?
exit $status
