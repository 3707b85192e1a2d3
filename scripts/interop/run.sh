#!/usr/bin/env bash
# Puts `tarik serve` in front of a real vLLM pair and checks it: answers against the same prompts without any reuse,
# token for token, and what moved against the engines' own metrics. README.md says what is needed.
#
#   VLLM_PAIR=path/to/launcher scripts/interop/run.sh PAIR_DIR [VERSION]
#
# Exit status: 0 all checks hold, 1 one does not, 2 usage, 3 something did not start.
. "$(dirname "$0")/pair.sh"

start_pair
start_router "$listen" "$admin" tarik --append="${APPEND:-false}" --return="${RETURN:-true}"

status=0
python3 scripts/interop/play.py --router "http://$listen" --admin "http://$admin" \
  --prefill "http://127.0.0.1:$p_port" --decode "http://127.0.0.1:$d_port" --tokens "${TOKENS:-80}" \
  --routes "${ROUTES:-/v1/chat/completions,/v1/completions,/v1/responses,/v1/messages}" \
  --ttl "$([ "${SETTLE:-yes}" = no ] && echo 0 || echo "$ttl")" || status=$?
exit $status
