package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/refengine/model"
)

const (
	defaultTTL       = 480 * time.Second
	defaultLease     = 30 * time.Second
	defaultEngineTTL = 3600 * time.Second
	defaultThreshold = 64 // tokens
)

func (c Config) withDefaults(shape model.Config) Config {
	setDefault(&c.Version, "0.33.0")
	setDefault(&c.BlockSize, 16)
	setDefault(&c.Blocks, 1024)
	setDefault(&c.MaxBatchedTokens, 2048)
	setDefault(&c.MaxSeqs, 256)
	setDefault(&c.SideChannelHost, "localhost")
	setDefault(&c.SideChannelListen, "127.0.0.1:0")
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	if c.MaxModelLen == 0 {
		c.MaxModelLen = (c.Blocks - 1) * c.BlockSize
		if shape.MaxPositions > 0 {
			c.MaxModelLen = min(c.MaxModelLen, shape.MaxPositions)
		}
	}
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	if c.KV != nil {
		kv := *c.KV
		setDefault(&kv.Connector, "NixlConnector")
		setDefault(&kv.Role, "kv_both")
		setDefault(&kv.FailurePolicy, "fail")
		setDefault(&kv.DecoderTTL, defaultTTL)
		setDefault(&kv.Lease, defaultLease)
		setDefault(&kv.EngineTTL, defaultEngineTTL)
		c.KV = &kv
	}
	return c
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (c Config) validate() error {
	switch {
	case c.BlockSize < 1 || c.Blocks < 2 || c.MaxBatchedTokens < 1 || c.MaxSeqs < 1 || c.MaxModelLen < 2:
		return fmt.Errorf("engine config: block size %d, %d blocks, %d batched tokens, %d sequences, model length %d: all must be positive",
			c.BlockSize, c.Blocks, c.MaxBatchedTokens, c.MaxSeqs, c.MaxModelLen)
	case c.MaxModelLen > (c.Blocks-1)*c.BlockSize:
		return fmt.Errorf("engine config: one request of %d tokens does not fit into %d blocks of %d tokens: decrease the model length or add blocks",
			c.MaxModelLen, c.Blocks-1, c.BlockSize)
	}
	_, err := parseRelease(c.Version)
	return err
}

// ParseKVTransferConfig reads vLLM's --kv-transfer-config as the given vLLM version would: an unknown
// top-level key is refused, an unknown key of kv_connector_extra_config is ignored without a word.
func ParseKVTransferConfig(raw []byte, version string) (*KVTransferConfig, error) {
	rel, err := parseRelease(version)
	if err != nil {
		return nil, err
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(raw, &top); err != nil {
		return nil, fmt.Errorf("parse kv transfer config: %w", err)
	}
	if top == nil {
		return nil, errors.New("parse kv transfer config: want an object")
	}
	known := []string{
		"kv_connector", "kv_role", "engine_id", "kv_load_failure_policy", "kv_buffer_device", "kv_connector_extra_config",
		"kv_connector_module_path", "enable_permute_local_kv", "kv_port",
	}
	if !rel.has(sinceCleanup) {
		known = append(known, "kv_rank", "kv_parallel_size", "kv_ip", "kv_buffer_size")
	}
	for _, key := range slices.Sorted(maps.Keys(top)) {
		if !slices.Contains(known, key) {
			return nil, fmt.Errorf("kv transfer config: unknown key %q", key)
		}
	}
	kv := &KVTransferConfig{
		Threshold: defaultThreshold, DecoderTTL: defaultTTL, Lease: defaultLease, EngineTTL: defaultEngineTTL,
		FailurePolicy: "fail",
	}
	for key, to := range map[string]*string{
		"kv_connector": &kv.Connector, "kv_role": &kv.Role, "engine_id": &kv.EngineID,
		"kv_load_failure_policy": &kv.FailurePolicy, "kv_buffer_device": &kv.BufferDevice,
	} {
		if v, ok := top[key]; ok && !isNull(v) {
			if err := json.Unmarshal(v, to); err != nil {
				return nil, fmt.Errorf("kv transfer config: %s: want a string", key)
			}
		}
	}
	switch kv.Connector {
	case "NixlConnector", "NixlPullConnector":
	case "":
		return nil, errors.New("kv transfer config: kv_connector is missing")
	default:
		return nil, fmt.Errorf("kv transfer config: kv_connector %q: this engine has NixlConnector only", kv.Connector)
	}
	if !slices.Contains([]string{"kv_producer", "kv_consumer", "kv_both"}, kv.Role) {
		return nil, fmt.Errorf("kv transfer config: kv_role %q: want kv_producer, kv_consumer or kv_both", kv.Role)
	}
	if kv.FailurePolicy != "fail" && kv.FailurePolicy != "recompute" {
		return nil, fmt.Errorf("kv transfer config: kv_load_failure_policy %q: want fail or recompute", kv.FailurePolicy)
	}
	if err := kv.parseExtra(top["kv_connector_extra_config"]); err != nil {
		return nil, err
	}
	if !rel.has(sinceLease) { // one environment variable, 480 s, was both
		kv.Lease, kv.DecoderTTL = defaultTTL, defaultTTL
	}
	return kv, nil
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

func (kv *KVTransferConfig) parseExtra(raw json.RawMessage) error {
	if len(raw) == 0 || isNull(raw) {
		return nil
	}
	var extra map[string]json.RawMessage
	if err := json.Unmarshal(raw, &extra); err != nil {
		return errors.New("kv transfer config: kv_connector_extra_config: want an object")
	}
	kv.Bidirectional = truthy(extra["bidirectional_kv_xfer"])
	if v, ok := extra["kv_recompute_threshold"]; ok {
		n, err := pyInt(v)
		if err != nil {
			return fmt.Errorf("kv transfer config: kv_recompute_threshold: %w", err)
		}
		kv.Threshold = n
	}
	for key, to := range map[string]*time.Duration{
		"decoder_kv_blocks_ttl": &kv.DecoderTTL, "kv_lease_duration": &kv.Lease, "engine_ttl": &kv.EngineTTL,
	} {
		v, ok := extra[key]
		if !ok {
			continue
		}
		var seconds float64
		if err := json.Unmarshal(v, &seconds); err != nil || isNull(v) {
			return fmt.Errorf("kv transfer config: %s: want a number of seconds, got %s", key, v)
		}
		// Zero means at once, which the zero value of the field does not.
		*to = max(time.Nanosecond, time.Duration(seconds*float64(time.Second)))
	}
	return nil
}

// pyInt is Python's int() of a JSON value.
func pyInt(raw json.RawMessage) (int, error) {
	s := string(bytes.TrimSpace(raw))
	switch s {
	case "true":
		return 1, nil
	case "false":
		return 0, nil
	}
	var quoted string
	if json.Unmarshal(raw, &quoted) == nil && !isNull(raw) {
		n, err := strconv.Atoi(strings.TrimSpace(quoted))
		if err != nil {
			return 0, fmt.Errorf("invalid literal for int(): %s", s)
		}
		return n, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("int() argument must be a number, got %s", s)
	}
	return int(f), nil
}

func sortedKeys(set map[int]bool) []int { return slices.Sorted(maps.Keys(set)) }
