package engine

import (
	"context"
	"encoding/json"
	"net"
	"time"
)

// FinishReason is how a request ended, in vLLM's words.
type FinishReason string

// The engine's own ends. Stop strings are matched in the front end, which then aborts.
const (
	FinishNone   FinishReason = ""
	FinishLength FinishReason = "length"
	FinishStop   FinishReason = "stop" // EOS or a stop token id
	FinishAbort  FinishReason = "abort"
	FinishError  FinishReason = "error" // HTTP 500
)

// Request is one sequence to compute and continue. The engine keeps a copy; Prompt and Params are
// not modified.
type Request struct {
	ID             string          // internal id, unique: prefix + client part + "-" + 8 hex
	Prompt         []int32         // token ids, not empty
	Salt           string          // cache_salt, "" for none
	Params         json.RawMessage // kv_transfer_params as sent; nil, "null" or "{}" for none
	MaxTokens      int             // output tokens, ≥ 1
	MinTokens      int             // output tokens before EOS or a stop token may come
	IgnoreEOS      bool
	StopTokenIDs   []int32
	Temperature    float64 // 0: greedy
	TopP           float64 // 1 or 0: off
	TopK           int     // ≤ 0: off
	Seed           *int64
	Logprobs       int  // top alternatives to report per output token; -1 off
	PromptLogprobs int  // -1 off; ≥ 0 makes the engine compute the whole prompt, and waste a handle
	DropParams     bool // fault: finish as if nothing could be retained (reply's params null)
}

// TokenLogprob is one alternative at one position.
type TokenLogprob struct {
	ID      int32
	Logprob float32
}

// Output is what one step produced for one request. A reader that falls behind gets several steps
// merged into one Output.
type Output struct {
	Tokens         []int32          // new ids, EOS included
	Logprobs       [][]TokenLogprob // per new token: the sampled one first, then the top ones
	PromptLogprobs [][]TokenLogprob // once, on the first output, if asked for; entry 0 is nil
	CachedTokens   int              // prompt tokens not computed here, as `usage` reports them; from vLLM 0.31 on D reports P's number
	LocalHitTokens int              // prompt tokens found in the own prefix cache
	PulledTokens   int              // prompt tokens read from another engine
	Finish         FinishReason     // FinishNone until the last output
	StopToken      *int32           // the stop token id that ended it, nil for EOS
	Params         json.RawMessage  // kv_transfer_params for the reply, nil or "null": none
	Err            error            // with FinishError
}

// KVTransferConfig is vLLM's --kv-transfer-config JSON. ParseKVTransferConfig fills the defaults
// given in brackets; a config built by hand may leave DecoderTTL and Lease zero for them.
type KVTransferConfig struct {
	Connector     string        // kv_connector: NixlConnector or NixlPullConnector
	Role          string        // kv_role: kv_producer, kv_consumer, kv_both
	EngineID      string        // engine_id; "": a new uuid per start
	FailurePolicy string        // kv_load_failure_policy: fail [fail], recompute
	BufferDevice  string        // kv_buffer_device
	Bidirectional bool          // extra: bidirectional_kv_xfer, by truthiness [false]
	Threshold     int           // extra: kv_recompute_threshold, tokens [64]; 0 = always pull
	DecoderTTL    time.Duration // extra: decoder_kv_blocks_ttl [480 s]
	Lease         time.Duration // extra: kv_lease_duration [30 s]
	EngineTTL     time.Duration // extra: engine_ttl [3600 s]: how long a stale peer is believed (≤ 0.31)
}

// Config is one engine process.
type Config struct {
	Version           string            // vLLM version imitated [0.33.0]
	ModelName         string            // served model name
	KV                *KVTransferConfig // nil: no connector, params are ignored
	BlockSize         int               // tokens [16]
	Blocks            int               // blocks in the pool; block 0 is never used, as in vLLM
	MaxModelLen       int               // tokens, prompt + reply [the model's, or what fits]
	MaxBatchedTokens  int               // token budget of a step [2048]
	MaxSeqs           int               // running requests [256]
	PrefixCaching     bool
	SideChannelHost   string                           // goes into handles: VLLM_NIXL_SIDE_CHANNEL_HOST [localhost]
	SideChannelListen string                           // address the side channel listens on; "127.0.0.1:0" for any port [127.0.0.1:0]
	HandshakeTimeout  time.Duration                    // waiting for a peer's first answer [5 s]
	Faults            Faults                           // see SetFaults
	Logf              func(format string, args ...any) // vLLM's log phrases; nil discards; must not block
	Now               func() time.Duration             // monotonic, arbitrary epoch; nil: real. With a fake clock call Wake after moving it

	// Dial and Listen replace the network; nil: TCP.
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	Listen func(addr string) (net.Listener, error)
}

// Faults are wrong or slow behaviours to switch on. The zero value is vLLM's normal behaviour.
// Wire faults of the HTTP surface belong to the api package.
type Faults struct {
	LinkBytesPerSecond float64       // bandwidth of this engine's READs, shared by all of them; 0: unlimited
	LinkLatency        time.Duration // added once per READ
	StepCost           time.Duration // simulated compute time of a step …
	PrefillTokenCost   time.Duration // … of each prompt token in it …
	ContextCost        time.Duration // … and of each prompt token per thousand tokens before it

	SyncScheduling bool // off: async scheduling, where EOS leaves remote_num_tokens = prompt + reply
	DraftTokens    int  // speculative drafts counted in remote_num_tokens beyond what is valid

	DeathAs500     bool          // what kills vLLM's engine fails only the request at hand
	FailReads      int           // the next n READs fail after the handshake
	HandshakeDelay time.Duration // this engine answers handshakes that late
	SilentSide     bool          // the side channel accepts connections and never answers
	StalePeers     bool          // transfers to an address fail for ever once its engine was replaced
	LazyWake       bool          // after a failed load under "recompute" an idle engine sleeps until the next request
	LoadViaCPU     bool          // GPU platform with kv_buffer_device "cpu": pulls are never started
	ClockEpoch     time.Duration // added to the engine's clock; changing it makes the clock jump
}
