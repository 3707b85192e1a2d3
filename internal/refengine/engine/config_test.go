package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseKVTransferConfig(t *testing.T) {
	t.Parallel()
	def := KVTransferConfig{
		Connector: "NixlConnector", Role: "kv_producer", FailurePolicy: "fail", Threshold: 64,
		DecoderTTL: 480 * time.Second, Lease: 30 * time.Second, EngineTTL: 3600 * time.Second,
	}
	with := func(change func(kv *KVTransferConfig)) *KVTransferConfig {
		kv := def
		change(&kv)
		return &kv
	}
	f := func(version, top, extra string, want *KVTransferConfig) {
		t.Helper()
		raw := fmt.Sprintf(`{"kv_connector":"NixlConnector","kv_role":"kv_producer"%s,"kv_connector_extra_config":{%s}}`, top, extra)
		got, err := ParseKVTransferConfig([]byte(raw), version)
		if want == nil {
			if err == nil {
				t.Errorf("%s: accepted", raw)
			}
			return
		}
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			return
		}
		equal(t, raw, *got, *want)
	}
	const v = "0.33.0"
	f(v, "", "", &def)
	// The published lines for P and D.
	f(v, `,"kv_load_failure_policy":"fail"`, `"bidirectional_kv_xfer":true,"kv_recompute_threshold":64`,
		with(func(kv *KVTransferConfig) { kv.Bidirectional = true }))
	f(v, "", `"bidirectional_kv_xfer":true,"decoder_kv_blocks_ttl":15`,
		with(func(kv *KVTransferConfig) { kv.Bidirectional, kv.DecoderTTL = true, 15*time.Second }))
	// The flag goes by truthiness: the string "false" is on.
	for value, on := range map[string]bool{
		"true": true, `"false"`: true, "1": true, "0.5": true, "[0]": true,
		"false": false, "0": false, "0.0": false, `""`: false, "null": false, "[]": false, "{}": false,
	} {
		f(v, "", `"bidirectional_kv_xfer":`+value, with(func(kv *KVTransferConfig) { kv.Bidirectional = on }))
	}
	// An unknown extra key is ignored, an unknown top-level key is not: the flag's wrong place.
	f(v, "", `"remote_pull_threshold":1`, &def)
	f(v, `,"bidirectional_kv_xfer":true`, "", nil)
	// The threshold is what int() makes of it.
	f(v, "", `"kv_recompute_threshold":"128"`, with(func(kv *KVTransferConfig) { kv.Threshold = 128 }))
	f(v, "", `"kv_recompute_threshold":64.9`, &def)
	f(v, "", `"kv_recompute_threshold":true`, with(func(kv *KVTransferConfig) { kv.Threshold = 1 }))
	f(v, "", `"kv_recompute_threshold":0`, with(func(kv *KVTransferConfig) { kv.Threshold = 0 }))
	f(v, "", `"kv_recompute_threshold":"64.0"`, nil)
	f(v, "", `"kv_recompute_threshold":null`, nil)
	f(v, "", `"kv_lease_duration":"30"`, nil)
	// Four keys are gone since 0.32.
	for _, key := range []string{"kv_rank", "kv_parallel_size", "kv_ip", "kv_buffer_size"} {
		f("0.31.0", fmt.Sprintf(`,"%s":1`, key), "", &def)
		f("0.32.0", fmt.Sprintf(`,"%s":1`, key), "", nil)
	}
	// 0.21 had one timeout for both sides.
	f("0.21.0", "", "", with(func(kv *KVTransferConfig) { kv.Lease = 480 * time.Second }))
	f(v, `,"kv_load_failure_policy":"recompute","engine_id":"e","kv_buffer_device":"cpu"`, "", with(func(kv *KVTransferConfig) {
		kv.FailurePolicy, kv.EngineID, kv.BufferDevice = "recompute", "e", "cpu"
	}))
	f(v, `,"kv_load_failure_policy":"retry"`, "", nil)

	for _, raw := range []string{
		"", "[]", "null", "{}", `{"kv_connector":"NixlConnector"}`, `{"kv_connector":"NixlConnector","kv_role":"both"}`,
		`{"kv_connector":"NixlPushConnector","kv_role":"kv_both"}`, `{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_extra_config":[]}`,
	} {
		if _, err := ParseKVTransferConfig([]byte(raw), v); err == nil {
			t.Errorf("%q: accepted", raw)
		}
	}
	for _, version := range []string{"", "0", "x.y", "0.20.0"} {
		if _, err := ParseKVTransferConfig([]byte(`{}`), version); err == nil || !strings.Contains(err.Error(), "version") {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(c *Config){
		"too few blocks for one request": func(c *Config) { c.Blocks = 64 },
		"negative block size":            func(c *Config) { c.BlockSize = -1 },
		"version":                        func(c *Config) { c.Version = "1" },
	} {
		cfg := measured()
		change(&cfg)
		if _, err := NewCompute(cfg, fakeShape, newHashModel(1, 1), nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestStartLog(t *testing.T) {
	t.Parallel()
	cfg := measured()
	cfg.KV = roleP()
	cfg.KV.EngineID = "prefill-0"
	n := startNode(t, newNetwork(), cfg)
	for _, phrase := range []string{
		"Bidirectional KV transfer is enabled and the kv recompute threshold is set to 64 tokens.KV blocks on D are released after a TTL of 480 seconds.",
		"Creating v1 connector with name: NixlPullConnector and engine_id: prefill-0",
		"Backend UCX was instantiated",
	} {
		equal(t, phrase, n.log.count(phrase), 1)
	}
	cfg.KV = roleP()
	cfg.KV.Threshold = 0 // silences the line
	n = startNode(t, newNetwork(), cfg)
	equal(t, "threshold 0", n.log.count("Bidirectional KV transfer is enabled"), 0)
}

func TestTruthiness(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]bool{
		"": false, " null ": false, "true": true, "-0": false, "1e-3": true, `"0"`: true, "[ ]": false, "[null]": true, `{ }`: false, `{"a":0}`: true,
	} {
		equal(t, raw, truthy([]byte(raw)), want)
	}
}
