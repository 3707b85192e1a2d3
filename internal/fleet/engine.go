// Package fleet knows the engines: whether they answer, what they are, what they can do, and
// whether a prefill engine has proved that it reads handles.
//
// An engine is an address and a life: the engine id in its kv_transfer_params changes when it
// starts anew. What was learned of one life does not hold for the next.
//
// Everything here is safe for concurrent use. Watch asks the engines from time to time; turns read
// the last answer and never wait.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// Role is what the router uses an engine for.
type Role string

// Roles.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// Trust says whether a prefill engine may be given handles. One whose flag is off parks such a
// request for ever, and nothing it says about itself tells.
type Trust string

// Trust of a prefill engine.
const (
	Unproven   Trust = "unproven"
	Proven     Trust = "proven"
	Distrusted Trust = "distrusted"
)

// Model is one entry of an engine's /v1/models.
type Model struct {
	ID     string `json:"id"`
	Root   string `json:"root"`
	MaxLen int    `json:"max_model_len"` // tokens
}

// Info is what an engine last said about itself.
type Info struct {
	Up        bool
	Version   string
	Can       kvp.Capability
	BlockSize int     // tokens, 0 until known
	Capacity  int     // tokens the KV pool holds, 0 if the engine does not say
	Usage     float64 // share of it in use, pinned blocks included, at the last look
	Waiting   float64 // requests waiting for room in it, at the last look
	Models    []Model
	EngineID  string // of its present life, "" until a reply carried one
	// Fingerprint is the system_fingerprint of its replies, a raw JSON string, "" until one carried it.
	Fingerprint string
	Trust       Trust
	TrustWhy    string // why it is distrusted
	// NoPrefixCache: it says that it runs without a prefix cache, so nothing can be prepared there.
	NoPrefixCache bool
	Retains       bool   // it has returned a handle: it keeps the KV of turns, asked for or not
	NoRender      bool   // it has refused to render: no scale-out endpoints
	Err           string // why it is not up
}

// Engine is one vLLM server.
type Engine struct {
	Role Role
	URL  *url.URL

	client *http.Client
	name   string // URL as text
	mu     sync.Mutex
	info   atomic.Pointer[Info] // never nil; changed by change only
	fails  atomic.Int64         // health checks failed in a row
}

// downAfter is how many health checks in a row must fail before an engine counts as down. A busy
// engine answers late; an engine that answers turns is up whatever its health check says.
const downAfter = 3

// New returns an engine that has not been asked anything yet.
func New(role Role, rawURL string, client *http.Client) (*Engine, error) {
	u, err := url.Parse(rawURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("%s engine %q: want a URL such as http://host:8000", role, rawURL)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	e := &Engine{Role: role, URL: u, client: client, name: u.String()}
	e.info.Store(&Info{Trust: Unproven, Err: "not asked yet"})
	return e, nil
}

// String is the engine's address.
func (e *Engine) String() string { return e.name }

// Info returns what is known now.
func (e *Engine) Info() Info { return *e.info.Load() }

// change lets f change what is known. Turns ask for it a dozen times each, and nobody has to wait for that.
func (e *Engine) change(f func(i *Info)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.Info()
	f(&i)
	e.info.Store(&i)
}

// Saw reports the engine id of a reply. It returns the id of the life that has ended, if this one
// is new.
func (e *Engine) Saw(engineID string) (ended string) {
	if engineID == "" || engineID == e.Info().EngineID {
		return ""
	}
	e.change(func(i *Info) {
		if engineID == i.EngineID {
			return // another turn was faster
		}
		ended = i.EngineID
		i.EngineID = engineID
		if ended != "" {
			i.Fingerprint = "" // it names the engine's settings, which may be others now
			i.Trust, i.TrustWhy = Unproven, ""
		}
	})
	return ended
}

// SawFingerprint records the system_fingerprint of a reply, a raw JSON string; nil is none.
func (e *Engine) SawFingerprint(raw []byte) {
	if len(raw) > 0 && string(raw) != e.Info().Fingerprint {
		e.change(func(i *Info) { i.Fingerprint = string(raw) })
	}
}

// Answered records that the engine has just answered a turn: it is up, however late its health
// checks come.
func (e *Engine) Answered() {
	if e.fails.Load() != 0 {
		e.fails.Store(0)
	}
}

// SawHandle records that the engine returned a handle.
func (e *Engine) SawHandle() {
	if !e.Info().Retains {
		e.change(func(i *Info) { i.Retains = true })
	}
}

// SetTrust records whether the engine reads handles. why is for people.
func (e *Engine) SetTrust(t Trust, why string) {
	e.change(func(i *Info) { i.Trust, i.TrustWhy = t, why })
}

// RefusedRender records that the engine has no render endpoint.
func (e *Engine) RefusedRender() { e.change(func(i *Info) { i.NoRender = true }) }

// Refresh asks the engine how it is and, when it has just come up, what it is.
func (e *Engine) Refresh(ctx context.Context) {
	err := e.ask(ctx)
	e.change(func(i *Info) {
		if err == nil {
			e.fails.Store(0)
			i.Up, i.Err = true, ""
			return
		}
		if e.fails.Add(1) >= downAfter || !i.Up {
			// Whatever comes back may be another life of it.
			i.Up, i.Err = false, err.Error()
			i.Version, i.Fingerprint = "", ""
			if i.Trust == Proven {
				i.Trust = Unproven
			}
		}
	})
}

func (e *Engine) ask(ctx context.Context) error {
	if _, err := e.get(ctx, "/health"); err != nil {
		return err
	}
	metrics, err := e.get(ctx, "/metrics")
	if err != nil {
		return err
	}
	e.load(metrics)
	if e.Info().Version != "" {
		return nil
	}
	var version struct{ Version string }
	if err := e.getJSON(ctx, "/version", &version); err != nil {
		return err
	}
	can, err := kvp.CapabilityOf(version.Version)
	if err != nil {
		return err
	}
	var models struct{ Data []Model }
	if err := e.getJSON(ctx, "/v1/models", &models); err != nil {
		return err
	}
	size, err := blockSize(metrics)
	if err != nil {
		return err
	}
	e.change(func(i *Info) {
		i.Version, i.Can, i.Models, i.BlockSize = version.Version, can, models.Data, size
		i.NoRender = !can.Render
	})
	return nil
}

// load reads how full the engine is from its /metrics.
func (e *Engine) load(metrics []byte) {
	number := func(r *regexp.Regexp) (sum float64) {
		for _, m := range r.FindAllSubmatch(metrics, -1) {
			v, _ := strconv.ParseFloat(string(m[1]), 64) // the pattern admits numbers only
			sum += v
		}
		return sum
	}
	usage, waiting, blocks := number(usageSample), number(waitingSample), number(blocksLabel)
	size, _ := blockSize(metrics) // 0 if it does not say
	e.change(func(i *Info) {
		i.NoPrefixCache = noPrefixCache.Match(metrics)
		i.Usage, i.Waiting, i.Capacity = usage, waiting, int(blocks)*size
	})
}

// With several data-parallel ranks behind one address the sums are over the ranks; usage is then
// too high rather than too low.
var (
	usageSample   = regexp.MustCompile(`(?m)^vllm:kv_cache_usage_perc(?:\{[^}]*\})? ([0-9.eE+-]+)`)
	waitingSample = regexp.MustCompile(`(?m)^vllm:num_requests_waiting_by_reason\{[^}]*reason="capacity"[^}]*\} ([0-9.eE+-]+)`)
	noPrefixCache = regexp.MustCompile(`(?m)^vllm:cache_config_info\{(?:.*,)?enable_prefix_caching="False"`)
	blocksLabel   = regexp.MustCompile(`(?m)^vllm:cache_config_info\{(?:.*,)?num_gpu_blocks="(\d+)"`)
)

var blockSizeLabel = regexp.MustCompile(`(?m)^vllm:cache_config_info\{(?:.*,)?block_size="(\d+)"`)

// blockSize finds the block size, in tokens, in an engine's /metrics.
func blockSize(metrics []byte) (int, error) {
	m := blockSizeLabel.FindSubmatch(metrics)
	if m == nil {
		return 0, errors.New("GET /metrics: no block_size in vllm:cache_config_info; is this a vLLM server?")
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("GET /metrics: block_size=%q", m[1])
	}
	return n, nil
}

func (e *Engine) getJSON(ctx context.Context, path string, to any) error {
	b, err := e.get(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, to); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

// maxAnswer bounds what an engine may say about itself, in bytes.
const maxAnswer = 8 << 20

func (e *Engine) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL.String()+path, nil)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	res, err := e.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: HTTP %d", path, res.StatusCode)
	}
	return b, nil
}

// Watch refreshes the engines every interval until ctx ends. after is called when all have been
// asked.
func Watch(ctx context.Context, interval time.Duration, engines []*Engine, after func()) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		RefreshAll(ctx, interval, engines)
		if ctx.Err() != nil {
			return
		}
		after()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// RefreshAll asks all engines at once and waits for the answers, at most for as long as timeout.
func RefreshAll(ctx context.Context, timeout time.Duration, engines []*Engine) {
	ctx, cancel := context.WithTimeout(ctx, max(timeout, time.Second))
	defer cancel()
	var wg sync.WaitGroup
	for _, e := range engines {
		wg.Go(func() { e.Refresh(ctx) })
	}
	wg.Wait()
}

// Mismatch says why p and d cannot be a pair, or "".
func Mismatch(p, d Info) string {
	switch {
	case !p.Up || !d.Up:
		return ""
	case p.Version != d.Version:
		return fmt.Sprintf("prefill runs vLLM %s and decode %s: a pair needs the same release", p.Version, d.Version)
	case p.BlockSize != d.BlockSize:
		return fmt.Sprintf("prefill has blocks of %d tokens and decode of %d: give both the same --block-size", p.BlockSize, d.BlockSize)
	case len(p.Models) > 0 && len(d.Models) > 0 && p.Models[0].ID != d.Models[0].ID:
		return fmt.Sprintf("prefill serves model %q and decode %q", p.Models[0].ID, d.Models[0].ID)
	}
	return ""
}
