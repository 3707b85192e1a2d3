package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// KVConfig is an engine's --kv-transfer-config, from wherever it became known.
type KVConfig struct {
	Source string // for people: "--prefill-kv", "the log", "GET /server_info"
	// Written says that this is what the operator typed: keys that an engine adds by itself are not in it.
	Written bool
	Top     map[string]any // values: map[string]any, []any, string, float64, bool, nil
	Extra   map[string]any // kv_connector_extra_config
}

// ParseKVConfig reads what an operator gave to --kv-transfer-config.
func ParseKVConfig(raw []byte, source string) (*KVConfig, error) {
	var top map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(&top); err != nil {
		return nil, fmt.Errorf("kv transfer config: %w", err)
	}
	if top == nil || d.More() {
		return nil, errors.New("kv transfer config: want one JSON object")
	}
	return newKVConfig(top, source, true), nil
}

func newKVConfig(top map[string]any, source string, written bool) *KVConfig {
	k := &KVConfig{Source: source, Written: written, Top: top}
	k.Extra, _ = top["kv_connector_extra_config"].(map[string]any)
	return k
}

func (k *KVConfig) text(key, or string) string {
	if s, ok := k.Top[key].(string); ok && s != "" {
		return s
	}
	return or
}

// Connector is the class, with the alias resolved: NixlConnector is NixlPullConnector.
func (k *KVConfig) Connector() string {
	if c := k.text("kv_connector", ""); c != "NixlConnector" {
		return c
	}
	return pullConnector
}

const (
	pullConnector = "NixlPullConnector"
	pushConnector = "NixlPushConnector"
)

// Role is kv_role.
func (k *KVConfig) Role() string { return k.text("kv_role", "") }

// Policy is kv_load_failure_policy.
func (k *KVConfig) Policy() string { return k.text("kv_load_failure_policy", "fail") }

// Flag reports whether bidirectional_kv_xfer is on. The engine goes by Python's truth, so that the text "false" is on.
func (k *KVConfig) Flag() bool { return truthy(k.Extra["bidirectional_kv_xfer"]) }

func truthy(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

// Threshold is kv_recompute_threshold as the engine's int() makes it of the setting, in tokens.
func (k *KVConfig) Threshold() (tokens int, err error) {
	switch v := k.Extra["kv_recompute_threshold"].(type) {
	case nil:
		if _, set := k.Extra["kv_recompute_threshold"]; set {
			return 0, errors.New("null is no number")
		}
		return defaultThreshold, nil
	case float64:
		return int(v), nil
	case bool:
		if v {
			return 1, nil
		}
		return 0, nil
	case string:
		n, err := strconv.Atoi(strings.TrimSpace(v))
		if err != nil {
			return 0, fmt.Errorf("%q is no number", v)
		}
		return n, nil
	default:
		return 0, errors.New("is no number")
	}
}

// What an engine does if nothing is said.
const (
	defaultThreshold = 64  // tokens
	defaultTTL       = 480 // seconds
	defaultLease     = 30  // seconds
)

// seconds reads a number of seconds of the extra config.
func (k *KVConfig) seconds(key string, or float64) float64 {
	if v, ok := k.Extra[key].(float64); ok && !math.IsInf(v, 0) {
		return v
	}
	return or
}

// TTL is decoder_kv_blocks_ttl in seconds.
func (k *KVConfig) TTL() float64 { return k.seconds("decoder_kv_blocks_ttl", defaultTTL) }

// Lease is kv_lease_duration in seconds. Before 0.22 one environment variable was both.
func (k *KVConfig) Lease(v kvp.Version) float64 {
	if v.Compare(kvp.Version{Major: 0, Minor: 22}) < 0 {
		return defaultTTL
	}
	return k.seconds("kv_lease_duration", defaultLease)
}

// Keys that engines know. Removed ones make an engine since 0.32 refuse to start.
var (
	topKeys = []string{
		"kv_connector", "kv_role", "engine_id", "kv_load_failure_policy", "kv_buffer_device", "kv_connector_extra_config",
		"kv_connector_module_path", "enable_permute_local_kv", "kv_port",
	}
	removedKeys = []string{"kv_rank", "kv_parallel_size", "kv_ip", "kv_buffer_size"}
	extraKeys   = []string{
		"bidirectional_kv_xfer", "kv_recompute_threshold", "decoder_kv_blocks_ttl", "kv_lease_duration", "engine_ttl",
		"enforce_handshake_compat", "backends", "num_threads", "push_registration_timeout", "enable_cross_layers_blocks",
	}
)

// misnamed are names from drafts, reviews and habit for what is called otherwise.
var misnamed = map[string]string{
	"remote_pull_threshold":    "kv_recompute_threshold",
	"recompute_threshold":      "kv_recompute_threshold",
	"kv_pull_threshold":        "kv_recompute_threshold",
	"bidirectional_kv":         "bidirectional_kv_xfer",
	"bidirectional":            "bidirectional_kv_xfer",
	"enable_bidirectional":     "bidirectional_kv_xfer",
	"decode_kv_blocks_ttl":     "decoder_kv_blocks_ttl",
	"decoder_kv_block_ttl":     "decoder_kv_blocks_ttl",
	"kv_blocks_ttl":            "decoder_kv_blocks_ttl",
	"lease_duration":           "kv_lease_duration",
	"kv_lease":                 "kv_lease_duration",
	"kv_load_failure_policies": "kv_load_failure_policy",
}

// meant guesses which known key an unknown one stands for: a known slip, or a name that differs by one or two letters.
func meant(key string, known []string) string {
	if m := misnamed[key]; m != "" {
		return m
	}
	best, least := "", 3
	for _, k := range known {
		if d := distance(key, k, least); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete or replace, or limit if it is not less.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return min(row[len(b)], limit)
}

// unknown returns the keys of m that are not among known, sorted.
func unknown(m map[string]any, known ...[]string) (keys []string) {
	for k := range m {
		if !slices.ContainsFunc(known, func(list []string) bool { return slices.Contains(list, k) }) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}
