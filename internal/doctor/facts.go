package doctor

import (
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// Facts is everything that the checks may look at.
type Facts struct {
	Time    time.Time
	Prefill *EngineFacts
	Decode  *EngineFacts
	Probe   *Probe        // nil: not played
	NoProbe string        // why not, "" if it was
	Config  *RouterConfig // nil: no configuration file of the router was given
	Router  *RouterFacts  // nil: no router was asked
	Host    *HostFacts    // nil: this machine was not looked at
}

// sides are both engines, P first.
func (f *Facts) sides() [2]*EngineFacts { return [2]*EngineFacts{f.Prefill, f.Decode} }

// Names of what a finding is about.
const (
	prefill = "prefill"
	decode  = "decode"
	pair    = "pair"
	routing = "router"
	host    = "host"
)

// Model is one entry of an engine's /v1/models.
type Model struct {
	ID     string `json:"id"`
	Root   string `json:"root"`
	MaxLen int    `json:"max_model_len"` // tokens
}

// EngineFacts is what is known of one engine.
type EngineFacts struct {
	Role string // prefill or decode: what it is used for
	URL  string

	Err     string // why it could not be asked, "" if it could
	Version string
	Can     kvp.Capability // zero if the version is not understood
	CanErr  string         // why it is not
	Models  []Model

	Before, After Metrics // around the probe; After is Before's if nothing lies between
	Earlier       Metrics // of the look before this one, when watching; else nil
	EarlierAt     time.Time
	known         Metrics // the newest scrape of all looks so far, when watching
	DevMode       bool    // GET /server_info answers
	Render        int     // HTTP status of the render endpoint, 0 if it was not asked
	KV            *KVConfig
	KVErr         string // why a configuration that was given cannot be read
	Log           *LogFacts
	Env           map[string]string // of the engine's process, as far as it was given; nil: unknown
	Settings      map[string]any    // of /server_info: the engine's configuration, nil if it is closed
}

// version is the release, zero if unknown.
func (e *EngineFacts) version() kvp.Version { return e.Can.Version }

// since reports whether the engine is of release 0.minor or later.
func (e *EngineFacts) since(minor int) bool {
	return e.version().Compare(kvp.Version{Minor: minor}) >= 0
}

// model is the first model served, "" if none is known.
func (e *EngineFacts) model() string {
	if len(e.Models) == 0 {
		return ""
	}
	return e.Models[0].ID
}

// maxLen is the longest sequence in tokens, 0 if the engine does not say.
func (e *EngineFacts) maxLen() int {
	if len(e.Models) == 0 {
		return 0
	}
	return e.Models[0].MaxLen
}

// last is the newest scrape.
func (e *EngineFacts) last() Metrics {
	if e.After != nil {
		return e.After
	}
	return e.Before
}

// flag is what settings or the log say about bidirectional_kv_xfer, and where that is from; known is false if they say
// nothing. What the probe showed is not looked at.
func (e *EngineFacts) flag() (on, known bool, from string) {
	switch {
	case e.KV != nil:
		return e.KV.Flag(), true, e.KV.Source
	case e.Log != nil && e.Log.FlagLine:
		return true, true, "the log"
	}
	return false, false, ""
}

// threshold is kv_recompute_threshold in tokens, as far as it is known.
func (e *EngineFacts) threshold() (tokens int, known bool) {
	if e.Log != nil && e.Log.Threshold != nil {
		return *e.Log.Threshold, true
	}
	if e.KV != nil {
		n, err := e.KV.Threshold()
		return n, err == nil
	}
	return 0, false
}

// ttl is decoder_kv_blocks_ttl in seconds, as far as it is known.
func (e *EngineFacts) ttl() (seconds float64, known bool) {
	if e.Log != nil && e.Log.TTL != nil {
		return *e.Log.TTL, true
	}
	if e.KV != nil {
		return e.KV.TTL(), true
	}
	return 0, false
}

// host is where the engine's HTTP side is reached.
func (e *EngineFacts) host() string {
	u, err := url.Parse(e.URL)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Hostname())
}

// sameHost reports whether both engines are reached at the same address.
func (f *Facts) sameHost() bool {
	p, d := f.Prefill.host(), f.Decode.host()
	return p == d || onlyHere(p) && onlyHere(d)
}

// onlyHere reports whether an address means the machine it is used on.
func onlyHere(address string) bool {
	ip := net.ParseIP(address)
	return address == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// RouterConfig is what a router's configuration file says, as far as it concerns the engines.
type RouterConfig struct {
	Source        string        // the file's name
	HandleTTL     time.Duration // how long decode is taken to keep a handle's blocks
	Margin        time.Duration // how much earlier the router gives a handle up
	Reuse         bool
	Authenticates bool // clients have to say who they are
	Isolated      bool // tenants have salts of their own
	SaltsLast     bool // salts are the same after a restart and on other replicas
}

// RouterFacts is what a running router says on its admin address.
type RouterFacts struct {
	URL     string
	Err     string // why it could not be asked
	Engines []RouterEngine
	// Mismatch is why the router does not take the engines for a pair.
	Mismatch string
	Metrics  Metrics
	Turns    []Turn // the newest, as GET /turns gives them
}

// RouterEngine is one entry of a router's GET /engines.
type RouterEngine struct {
	Role    string `json:"role"`
	URL     string `json:"url"`
	Up      bool   `json:"up"`
	Handles string `json:"handles"` // of P: proven, unproven, distrusted
	Why     string `json:"why"`
}

// Turn is what doctor reads of a receipt.
type Turn struct {
	Number   int     `json:"turn_number"`
	Endpoint string  `json:"endpoint"`
	Streamed bool    `json:"streamed"`
	Arm      string  `json:"arm"`
	Why      string  `json:"why"`
	Prompt   int     `json:"prompt_tokens"`
	Local    *int    `json:"p_local_tokens"`
	Pulled   *int    `json:"p_pulled_tokens"`
	Status   int     `json:"status"`
	PMs      float64 `json:"p_ms"`
}
