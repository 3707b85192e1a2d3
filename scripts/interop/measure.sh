#!/usr/bin/env bash
# Measures, on a real vLLM pair, what a turn costs without reuse, with the handle held until the next turn, with the
# return, and with a P that has been given everything: `tarik bench` over three routers and the pair by hand.
#
#   VLLM_PAIR=path/to/launcher scripts/interop/measure.sh PAIR_DIR [VERSION]
#
# The report goes to $LOGS/report.md and to standard output. LENGTHS, TURNS, REPEATS, REPLY, THINK change the plan.
. "$(dirname "$0")/pair.sh"

start_pair
start_router 127.0.0.1:9001 127.0.0.1:9101 off --reuse=false
start_router 127.0.0.1:9002 127.0.0.1:9102 held --return=false
start_router 127.0.0.1:9003 127.0.0.1:9103 return --append=false
p=http://127.0.0.1:$p_port d=http://127.0.0.1:$d_port
bin/tarik bench --arm off=http://127.0.0.1:9001 --arm held=http://127.0.0.1:9002 --arm return=http://127.0.0.1:9003 \
  --arm "oracle=pd:$p,$d?policy=oracle" --metrics "off=$p,$d" --metrics "held=$p,$d" --metrics "return=$p,$d" --base oracle \
  --lengths "${LENGTHS:-512,2048}" --turns "${TURNS:-4}" --new 128 --reply "${REPLY:-150}" --repeats "${REPEATS:-6}" --think "${THINK:-2s}" \
  --journal "$logs/journal.jsonl" --md "$logs/report.md" --json "$logs/report.json" --html "$logs/report.html"
