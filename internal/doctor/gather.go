package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// Options say what to look at. Prefill, Decode and Client are required.
type Options struct {
	Prefill, Decode string // URLs
	Router          string // URL of a router's admin address, "" for none
	// Client makes all calls; what the engines need to be let in, keys and certificates, is its business.
	Client *http.Client
	// RouterClient asks the router. Default: Client.
	RouterClient *http.Client

	PrefillKV, DecodeKV   []byte // --kv-transfer-config as it was given to the engine; nil: unknown
	PrefillLog, DecodeLog *LogFacts
	PrefillEnv, DecodeEnv map[string]string
	Config                *RouterConfig
	Host                  *HostFacts

	NoProbe bool
	// Patience bounds each call of the probe, the wait for an engine that hangs included.
	Patience time.Duration
	// TransferTokens is the length of the prompt by which the transfer is measured if the engines' own counters show
	// too little traffic; 0 leaves that out.
	TransferTokens int
	// Now is the clock. Default: time.Now.
	Now func() time.Time

	seed uint64 // of the probe's tokens; 0: random ones
}

// Defaults.
const (
	DefaultPatience       = 20 * time.Second
	DefaultTransferTokens = 2048
)

// askPatience bounds one question about an engine's state.
const askPatience = 10 * time.Second

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 16 << 20

func (o Options) now() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}

// Gather asks everybody and, unless told not to, plays the probe. What cannot be asked is a fact, not an error; the
// error is ctx's.
func Gather(ctx context.Context, o Options) (*Facts, error) {
	f := &Facts{Time: o.now(), Config: o.Config, Host: o.Host}
	f.Prefill = newEngineFacts(prefill, o.Prefill, o.PrefillKV, o.PrefillLog, o.PrefillEnv)
	f.Decode = newEngineFacts(decode, o.Decode, o.DecodeKV, o.DecodeLog, o.DecodeEnv)
	var wg sync.WaitGroup
	for _, e := range f.sides() {
		wg.Go(func() { e.ask(ctx, o.Client) })
	}
	if o.Router != "" {
		f.Router = &RouterFacts{URL: strings.TrimSuffix(o.Router, "/")}
		client := o.RouterClient
		if client == nil {
			client = o.Client
		}
		wg.Go(func() { f.Router.ask(ctx, client) })
	}
	wg.Wait()
	if f.NoProbe = whyNoProbe(f, o.NoProbe); f.NoProbe == "" && ctx.Err() == nil {
		f.Probe = play(ctx, f, o)
	}
	for _, e := range f.sides() {
		if e.After == nil {
			e.After = e.Before
		}
	}
	return f, ctx.Err()
}

func newEngineFacts(role, url string, kv []byte, log *LogFacts, env map[string]string) *EngineFacts {
	e := &EngineFacts{Role: role, URL: strings.TrimSuffix(url, "/"), Log: log, Env: env}
	if log != nil {
		e.KV = log.KV
	}
	if kv != nil {
		k, err := ParseKVConfig(kv, "--"+role+"-kv")
		if err != nil {
			e.KVErr = err.Error()
			return e
		}
		e.KV = k
	}
	return e
}

// statusError is an answer that is not 200.
type statusError struct {
	path   string
	status int
	body   string // its beginning
}

func (e *statusError) Error() string { return fmt.Sprintf("GET %s: HTTP %d", e.path, e.status) }

func get(ctx context.Context, c *http.Client, base, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("GET %s: no answer in %s", path, askPatience)
		}
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, &statusError{path, res.StatusCode, string(b[:min(len(b), 200)])}
	}
	return b, nil
}

func getJSON(ctx context.Context, c *http.Client, base, path string, to any) error {
	b, err := get(ctx, c, base, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, to); err != nil {
		return fmt.Errorf("GET %s: not what an engine answers: %w", path, err)
	}
	return nil
}

// ask finds out what the engine says about itself.
func (e *EngineFacts) ask(ctx context.Context, c *http.Client) {
	fail := func(err error) { e.Err = err.Error() }
	if _, err := get(ctx, c, e.URL, "/health"); err != nil {
		fail(err)
		return
	}
	var version struct{ Version string }
	if err := getJSON(ctx, c, e.URL, "/version", &version); err != nil {
		fail(err)
		return
	}
	e.Version = version.Version
	can, err := kvp.CapabilityOf(e.Version)
	if err != nil {
		e.CanErr = err.Error()
	}
	e.Can = can
	var models struct{ Data []Model }
	if err := getJSON(ctx, c, e.URL, "/v1/models", &models); err != nil {
		fail(err)
		return
	}
	e.Models = models.Data
	text, err := get(ctx, c, e.URL, "/metrics")
	if err != nil {
		fail(err)
		return
	}
	e.Before = ParseMetrics(text)
	e.serverInfo(ctx, c)
	e.Render = e.askRender(ctx, c)
}

// scrape reads /metrics again, nil if it cannot.
func (e *EngineFacts) scrape(ctx context.Context, c *http.Client) Metrics {
	text, err := get(ctx, c, e.URL, "/metrics")
	if err != nil {
		return nil
	}
	return ParseMetrics(text)
}

// serverInfo reads the settings of an engine in development mode. Others answer 404.
func (e *EngineFacts) serverInfo(ctx context.Context, c *http.Client) {
	b, err := get(ctx, c, e.URL, "/server_info?config_format=json")
	if err != nil {
		return
	}
	var info struct {
		Config json.RawMessage `json:"vllm_config"`
		Env    map[string]any  `json:"vllm_env"`
		System json.RawMessage `json:"system_env"`
	}
	if json.Unmarshal(b, &info) != nil || info.Config == nil {
		return
	}
	e.DevMode = true
	var settings map[string]any
	if json.Unmarshal(info.Config, &settings) != nil {
		return // a release that only knows text
	}
	e.Settings = settings
	if kv, ok := settings["kv_transfer_config"].(map[string]any); ok && e.KV == nil {
		e.KV = newKVConfig(kv, "GET /server_info", false)
	}
}

// askRender asks the render endpoint for a prompt of one letter and returns the status.
func (e *EngineFacts) askRender(ctx context.Context, c *http.Client) int {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	body, err := json.Marshal(map[string]any{"model": e.model(), "prompt": "a", "max_tokens": 1})
	if err != nil {
		panic("BUG: doctor: " + err.Error())
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL+"/v1/completions/render", bytes.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.Do(req)
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// setting is one of the engine's own settings: the log's, by the argument's name, or those of /server_info, by section
// and name.
func (e *EngineFacts) setting(arg, engine, section, name string) any {
	if v := e.Log.setting(arg, engine); v != nil {
		return v
	}
	s, _ := e.Settings[section].(map[string]any)
	return s[name]
}

// maxTurns is how many receipts doctor looks at.
const maxTurns = 500

// ask finds out what a router says about itself.
func (r *RouterFacts) ask(ctx context.Context, c *http.Client) {
	var engines struct {
		Engines  []RouterEngine `json:"engines"`
		Mismatch string         `json:"mismatch"`
	}
	if err := getJSON(ctx, c, r.URL, "/engines", &engines); err != nil {
		r.Err = err.Error()
		var status *statusError
		if errors.As(err, &status) && status.status == http.StatusNotFound {
			r.Err += ": is this the admin address (--admin, 127.0.0.1:9091 by default)?"
		}
		return
	}
	r.Engines, r.Mismatch = engines.Engines, engines.Mismatch
	if err := getJSON(ctx, c, r.URL, fmt.Sprintf("/turns?n=%d", maxTurns), &r.Turns); err != nil {
		r.Err = err.Error()
		return
	}
	text, err := get(ctx, c, r.URL, "/metrics")
	if err != nil {
		r.Err = err.Error()
		return
	}
	r.Metrics = ParseMetrics(text)
}
