#!/usr/bin/env bash
# A launcher for run.sh whose engines are tarik's own reference engines: it shows that the script works where there is
# no vLLM.   VLLM_PAIR=scripts/interop/reference scripts/interop/run.sh .
#
# start.sh PAIR_DIR prefill|decode PORT SIDE_PORT VERSION EXTRA_JSON; PAIR_DIR is not looked at.
set -euo pipefail
role=$2 port=$3 side=$4 version=$5 extra=$6
case $role in prefill) kv=kv_producer ;; decode) kv=kv_consumer ;; *) echo "role: prefill or decode" >&2; exit 2 ;; esac
config=$(python3 -c 'import json, sys; print(json.dumps({"kv_connector": "NixlConnector", "kv_role": sys.argv[1],
  "kv_connector_extra_config": {"bidirectional_kv_xfer": True, **json.loads(sys.argv[2])}}))' "$kv" "$extra")
cd "$(dirname "$0")/../../.."
VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 VLLM_NIXL_SIDE_CHANNEL_PORT="$side" setsid bin/tarik engine --role "$role" \
  --listen "127.0.0.1:$port" --as "$version" --kv-transfer-config "$config" >/dev/null 2>&1 &
echo $!
