#!/usr/bin/env bash
# Puts real clients, unmodified, in front of `tarik up`: the OpenAI and Anthropic SDKs for Python and Node, an agent
# framework, and two coding agents' command lines. Needs Python 3.10+, Node 20+ and their registries for the first
# run; what is installed stays in DIR.
#
#   scripts/sdk/run.sh [DIR]      DIR defaults to a folder in the user's cache
#
# Exit status: 0 all hold, 1 something does not, 2 something could not be installed or started.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/tarik-sdk}
mkdir -p "$dir" bin
dir=$(cd "$dir" && pwd)

if ! cmp -s "$here/requirements.txt" "$dir/requirements.txt"; then
  python3 -m venv "$dir/venv" && "$dir/venv/bin/pip" install -q -r "$here/requirements.txt" || exit 2
  cp "$here/requirements.txt" "$dir/"
fi
if ! cmp -s "$here/package.json" "$dir/package.json"; then
  cp "$here/package.json" "$dir/package.json.new"
  (cd "$dir" && mv package.json.new package.json && npm install --no-audit --no-fund --loglevel error) || { rm -f "$dir/package.json"; exit 2; }
fi
cp "$here/sdk.mjs" "$dir/"   # beside node_modules, where it finds its packages

go build -o bin/tarik ./cmd/tarik
work=$(mktemp -d)
${TARIK:-bin/tarik} up --receipts "$work/turns.jsonl" >"$work/up.log" 2>&1 &
up=$!
trap 'kill $up 2>/dev/null; wait $up 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 100); do grep -q 'curl -s' "$work/up.log" && break; sleep 0.1; done
base=$(sed -n 's/^  clients *//p' "$work/up.log") admin=$(sed -n 's|^  operators *\(http://[^/]*\)/.*|\1|p' "$work/up.log")
[ -n "$base" ] && [ -n "$admin" ] || { cat "$work/up.log" >&2; exit 2; }

failed=0
"$dir/venv/bin/python" "$here/sdk.py" "$base" "$admin" tiny || failed=1
node "$dir/sdk.mjs" "$base" "$admin" tiny || failed=1

# The coding agents get two turns each. What they make of the words is their business; that the second turn is the
# first one's successor, and nothing failed, is in the receipts.
agent() { # NAME ENDPOINT: the receipts since the last call
  local name=$1 endpoint=$2
  if python3 - "$work/turns.jsonl" "$work/seen" "$endpoint" <<'P'
import json, os, sys
turns, seen, endpoint = sys.argv[1:]
skip = int(open(seen).read()) if os.path.exists(seen) else 0
new = [json.loads(l) for l in open(turns)][skip:]
open(seen, "w").write(str(skip + len(new)))
mine = [t for t in new if t["endpoint"] == endpoint]
bad = [t for t in new if t["status"] not in (200, 499)]
print(f"        {len(mine)} turns, statuses {sorted({t['status'] for t in new})}, turn numbers {[t['turn_number'] for t in mine]}, arms {[t['arm'] for t in mine]}")
sys.exit(0 if mine and not bad and max(t["turn_number"] for t in mine) >= 2 else 1)
P
  then echo "ok      $name"; else echo "FAILED  $name"; failed=1; fi
}
python3 -c 'import sys; open(sys.argv[2], "w").write(str(sum(1 for _ in open(sys.argv[1]))))' "$work/turns.jsonl" "$work/seen"

mkdir -p "$work/codex" "$work/home" "$work/project"
cat >"$work/codex/config.toml" <<E2
model = "tiny"
model_provider = "tarik"
approval_policy = "never"
sandbox_mode = "read-only"
[model_providers.tarik]
name = "tarik"
base_url = "$base/v1"
wire_api = "responses"
env_key = "TARIK_KEY"
E2
cat >"$work/project/opencode.json" <<E2
{"model": "tarik/tiny", "provider": {"tarik": {"npm": "@ai-sdk/openai-compatible", "name": "tarik",
 "options": {"baseURL": "$base/v1", "apiKey": "x"}, "models": {"tiny": {"name": "tiny", "limit": {"context": 200000, "output": 60}}}}}}
E2
export TARIK_KEY=x CODEX_HOME=$work/codex HOME=$work/home
codex() { (cd "$work/project" && timeout 120 "$dir/node_modules/.bin/codex" exec --skip-git-repo-check "$@" </dev/null >"$work/agent.log" 2>&1) || { tail -n 5 "$work/agent.log"; return 1; }; }
if codex "Say something about the river." && codex resume --last "Go on."; then agent codex /v1/responses; else echo "FAILED  codex did not run"; failed=1; fi
opencode() { (cd "$work/project" && timeout 120 "$dir/node_modules/.bin/opencode" run "$@" </dev/null >"$work/agent.log" 2>&1) || { tail -n 5 "$work/agent.log"; return 1; }; }
if opencode "Say something about the river." && opencode --continue "Go on."; then agent opencode /v1/chat/completions; else echo "FAILED  opencode did not run"; failed=1; fi
exit $failed
