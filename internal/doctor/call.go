package doctor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/sse"
)

// Call is one request of the probe and what came of it.
type Call struct {
	Name   string // what it is for
	Engine string // prefill or decode
	Prompt int    // tokens

	Status   int // HTTP, 0 if there was no answer
	Err      string
	TimedOut bool // no answer in time: the probe hung up
	Took     time.Duration
	Output   int  // tokens generated
	Cached   *int // prompt tokens that the engine did not compute, as its reply says; nil if it does not
	Params   bool // the reply carried kv_transfer_params
	Handle   *HandleFacts
	Top      map[string]float64 // the likeliest first tokens, up to five, with the logarithm of their probability

	// P and D are what the engines counted meanwhile, others' requests included. Waits is what P was doing when the
	// probe lost patience.
	P, D  Counters
	Waits Load

	Streamed  bool
	Events    int           // of a stream, with text
	FirstText time.Duration // until the first of them
	LastText  time.Duration // until the last
}

// ok reports whether the call went well.
func (c *Call) ok() bool { return c != nil && c.Status == http.StatusOK && c.Err == "" }

// HandleFacts is what doctor keeps of a kv_transfer_params: sizes and addresses. Whoever has the rest can read KV.
type HandleFacts struct {
	Tokens     int
	Blocks     int
	Groups     int
	Host       string
	Port       int
	TP, DCP    int
	HasExpiry  bool     // the member is there and not null
	Expiry     *float64 // on the owner's own clock, seconds
	Fixed      bool     // the engine's id is not made anew at each start
	Consistent bool     // the list of blocks fits the number of tokens
	Seen       time.Duration
	Unresolved bool   // Host is a name that this machine cannot resolve
	Err        string // why the params cannot be used
	engineID   string
}

// ask is what a call sends.
type ask struct {
	name    string
	side    *EngineFacts
	salt    string
	ids     []int32
	max     int    // tokens to generate
	params  []byte // kv_transfer_params, nil for none
	top     bool   // ask for the likeliest first tokens
	stream  bool
	hangUp  bool // at the first event: the engine then keeps nothing
	want    kvp.Shape
	wantIDs bool
}

// answer is what the probe goes on with: it never leaves this package.
type answer struct {
	params []byte
	ids    []int32
}

func (q ask) body() []byte {
	b := []byte(`{"model":`)
	b = bodyedit.AppendString(b, q.side.model())
	b = append(b, `,"prompt":`...)
	b = kvp.AppendIDs(b, q.ids)
	b = fmt.Appendf(b, `,"max_tokens":%d,"temperature":0,"ignore_eos":true`, q.max)
	if q.salt != "" {
		b = append(b, `,"cache_salt":`...)
		b = bodyedit.AppendString(b, q.salt)
	}
	if q.top {
		b = append(b, `,"logprobs":5`...)
	}
	if q.wantIDs {
		b = append(b, `,"return_token_ids":true`...)
	}
	if q.stream {
		b = append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	}
	if q.params != nil {
		b = append(b, `,"kv_transfer_params":`...)
		b = append(b, q.params...)
	}
	return append(b, '}')
}

// randomID is a name that no other request has: hexadecimal, because engines build ids of it.
func randomID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// do makes the call. late is called when patience ends, before the probe hangs up.
func (q ask) do(ctx context.Context, c *http.Client, patience time.Duration, late func()) (*Call, answer) {
	call := &Call{Name: q.name, Engine: q.side.Role, Prompt: len(q.ids), Streamed: q.stream}
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	timer := time.AfterFunc(patience, func() {
		if late != nil {
			late()
		}
		hangUp()
	})
	defer timer.Stop()
	start := time.Now()
	a, err := q.send(ctx, c, call, start)
	call.Took = time.Since(start)
	if err != nil {
		call.Err = err.Error()
		if !timer.Stop() {
			call.TimedOut, call.Err = true, fmt.Sprintf("no answer in %s", patience)
		}
	}
	return call, a
}

func (q ask) send(ctx context.Context, c *http.Client, call *Call, start time.Time) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.side.URL+kvp.Completions.Path(), bytes.NewReader(q.body()))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", randomID())
	res, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	call.Status = res.StatusCode
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 4096)) // as much as there is
		return answer{}, fmt.Errorf("HTTP %d: %s", res.StatusCode, errorMessage(b))
	}
	if q.stream {
		return q.readStream(res.Body, call, start)
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return answer{}, err
	}
	var r reply
	if err := json.Unmarshal(b, &r); err != nil {
		return answer{}, fmt.Errorf("reply is not a completion: %w", err)
	}
	return r.into(call, q), nil
}

// reply is what doctor reads of a completion, or of one event of a stream of it.
type reply struct {
	Choices []struct {
		Text     string
		TokenIDs []int32 `json:"token_ids"`
		Logprobs *struct {
			Top []map[string]float64 `json:"top_logprobs"`
		}
	}
	Usage *struct {
		Prompt  int `json:"prompt_tokens"`
		Output  int `json:"completion_tokens"`
		Details *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Params json.RawMessage `json:"kv_transfer_params"`
	Error  *struct{ Message string }
}

// into notes what the reply says.
func (r *reply) into(call *Call, q ask) answer {
	var a answer
	if u := r.Usage; u != nil {
		call.Output = u.Output
		if u.Details != nil {
			call.Cached = u.Details.Cached
		}
	}
	if len(r.Choices) > 0 {
		a.ids = r.Choices[0].TokenIDs
		if l := r.Choices[0].Logprobs; l != nil && len(l.Top) > 0 {
			call.Top = l.Top[0]
		}
	}
	if bodyedit.KindOf(r.Params) != bodyedit.Object {
		return a
	}
	call.Params = true
	a.params = r.Params
	if n, ok := bodyedit.Lookup(r.Params, "remote_prefill_cached_tokens"); ok {
		if v, ok := bodyedit.Int(n); ok {
			cached := int(v)
			call.Cached = &cached
		}
	}
	call.Handle = readHandle(r.Params, q)
	return a
}

// engineIDs are those that engines make for themselves at each start: a uuid, with the rank behind it.
var engineIDs = regexp.MustCompile(`^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}(_dp\d+)?$`)

func readHandle(raw []byte, q ask) *HandleFacts {
	var f kvp.Fields
	var err error
	if q.want == kvp.ShapeDecode {
		var h kvp.Handle
		h, err = kvp.ParseHandle(raw)
		f = h.Fields
	} else {
		var a kvp.Prefilled
		a, err = kvp.ParsePrefilled(raw)
		f = a.Fields
	}
	if err != nil {
		return &HandleFacts{Err: err.Error()}
	}
	h := &HandleFacts{
		Tokens: f.Tokens, Blocks: f.BlockCount(), Groups: len(f.Blocks), Host: f.Host, Port: f.Port, TP: f.TPSize, DCP: f.DCPSize,
		HasExpiry: f.Expiry != nil, Expiry: f.Expiry, Fixed: !engineIDs.MatchString(f.EngineID), engineID: f.EngineID, Consistent: true,
	}
	if bs := q.side.Before.BlockSize(); bs > 0 {
		h.Consistent = f.Consistent(bs)
	}
	return h
}

// readStream reads a stream to its end, or to its first event if the probe is to hang up there.
func (q ask) readStream(body io.Reader, call *Call, start time.Time) (answer, error) {
	var (
		f   sse.Framer
		all answer
		buf = make([]byte, 32<<10)
	)
	take := func(ev sse.Event) error {
		if !ev.HasData() || ev.Partial || string(ev.Data()) == "[DONE]" {
			return nil
		}
		var r reply
		if err := json.Unmarshal(ev.Data(), &r); err != nil {
			return fmt.Errorf("event is not a completion: %w", err)
		}
		if r.Error != nil {
			return fmt.Errorf("error in the stream: %s", r.Error.Message)
		}
		if len(r.Choices) > 0 {
			now := time.Since(start)
			if call.Events++; call.Events == 1 {
				call.FirstText = now
			}
			call.LastText = now
		}
		a := r.into(call, q)
		all.ids = append(all.ids, a.ids...)
		if a.params != nil {
			all.params = bytes.Clone(a.params)
		}
		return nil
	}
	for {
		n, err := body.Read(buf)
		f.Feed(buf[:n])
		for ev, ok := f.Next(); ok; ev, ok = f.Next() {
			if err := take(ev); err != nil {
				return all, err
			}
		}
		if q.hangUp && call.Events > 0 {
			return all, nil
		}
		if err == io.EOF {
			if ev, ok := f.Flush(); ok {
				return all, take(ev)
			}
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// errorMessage is what an engine's error object says, or its first letters.
func errorMessage(b []byte) string {
	var e struct {
		Error struct{ Message string }
	}
	if json.Unmarshal(b, &e) == nil && e.Error.Message != "" {
		return e.Error.Message
	}
	return fmt.Sprintf("%.100q", b)
}
