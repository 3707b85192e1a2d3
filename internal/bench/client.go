package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"
)

// NewClient returns a client for measuring: connections are kept for every conversation, nothing is compressed, no
// redirect is followed, and no time limit is set but that of the turn.
func NewClient() *http.Client {
	d := net.Dialer{Timeout: 10 * time.Second}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: d.DialContext, MaxIdleConnsPerHost: 4096, IdleConnTimeout: 2 * time.Minute, DisableCompression: true,
			TLSHandshakeTimeout: 10 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// query is one turn as an arm is asked.
type query struct {
	model     string
	messages  []json.RawMessage
	tools     json.RawMessage
	maxTokens int
	fixed     bool // min_tokens = maxTokens
	first     bool // turn 1
	id        string
	salt      string // of the conversation, "" for none
	coldSalt  string // for P alone if its cache is to be cold, else equal to salt
	nextCold  string // the same of the next turn
}

// legs is where the time of a turn went, and what the engines say they found in their caches.
type legs struct {
	prefill, decode  time.Duration // pd arms
	pCached, dCached *int          // tokens
	retried          bool          // P failed with a handle and was asked again without
}

// prepared is what a pd arm did between two turns.
type prepared struct {
	counted bool // the next turn is late if it waits for this
	failure *Failure
}

// player plays one conversation on one arm.
type player interface {
	// turn sends one turn and reads its answer.
	turn(ctx context.Context, q *query) (*reply, legs, *Failure)
	// prepare does what the arm does after a turn. q and r are nil before the first, next is nil after the last.
	prepare(ctx context.Context, q *query, r *reply, next *query) prepared
	// count returns the number of prompt tokens of q, 0 if the endpoint does not say.
	count(ctx context.Context, q *query) (int, *Failure)
}

// openAI plays on an OpenAI-compatible endpoint.
type openAI struct {
	client *http.Client
	arm    *Arm
	base   string
	ids    []int32 // of an arm that speaks in ids: the prompt of the next turn
}

var _ player = (*openAI)(nil)

func (o *openAI) turn(ctx context.Context, q *query) (*reply, legs, *Failure) {
	path, changes := chatPath, fields(nil)
	if o.arm.IDs {
		path, changes = completionsPath, fields{"prompt": o.ids, "messages": nil, "tools": nil, "return_token_ids": true}
	}
	body, err := q.body(o.arm.Body, changes)
	if err != nil {
		return nil, legs{}, failed(FailMalformed, "%v", err)
	}
	r := &reply{}
	f := stream(ctx, o.client, o.base+path, o.arm.Header, q.id, body, r)
	return r, legs{dCached: r.usage.cached()}, f
}

func (o *openAI) prepare(ctx context.Context, q *query, r *reply, next *query) prepared {
	if !o.arm.IDs || next == nil {
		return prepared{}
	}
	if q != nil {
		o.ids = append(o.ids[:len(o.ids):len(o.ids)], r.ids...)
	}
	added, f := textIDs(ctx, o.client, o.base, o.arm.Header, next, q == nil)
	if f != nil {
		return prepared{failure: f}
	}
	o.ids = append(o.ids[:len(o.ids):len(o.ids)], added...)
	return prepared{}
}

func (o *openAI) count(ctx context.Context, q *query) (int, *Failure) {
	if o.arm.IDs {
		ids, f := textIDs(ctx, o.client, o.base, o.arm.Header, q, true)
		return len(ids), f
	}
	short := *q
	short.maxTokens = 1
	r, _, f := o.turn(ctx, &short)
	if f != nil && f.Kind != FailEmpty {
		return 0, f
	}
	if r.usage == nil {
		return 0, nil
	}
	return r.usage.Prompt, nil
}

// fields are members of a body; nil removes one.
type fields map[string]any

// body is the request. own are the arm's members and changes what this call needs; both replace what is there.
func (q *query) body(own map[string]json.RawMessage, changes fields) ([]byte, error) {
	b := fields{
		"model": q.model, "messages": q.messages, "max_tokens": q.maxTokens, "temperature": 0,
		"stream": true, "stream_options": fields{"include_usage": true},
	}
	if q.tools != nil {
		b["tools"] = q.tools
	}
	if q.fixed {
		b["min_tokens"] = q.maxTokens
	}
	if q.salt != "" {
		b["cache_salt"] = q.salt
	}
	for name, v := range own {
		b[name] = v
		if string(v) == "null" {
			delete(b, name)
		}
	}
	for name, v := range changes {
		b[name] = v
		if v == nil {
			delete(b, name)
		}
	}
	// The members come in the order of their names, except messages: long ones last are friendlier to logs.
	var out bytes.Buffer
	out.WriteByte('{')
	names := slices.Sorted(maps.Keys(b))
	if i := slices.Index(names, "messages"); i >= 0 {
		names = append(slices.Delete(names, i, i+1), "messages")
	}
	for i, name := range names {
		if i > 0 {
			out.WriteByte(',')
		}
		v, err := encode(b[name])
		if err != nil {
			return nil, fmt.Errorf("member %s: %w", name, err)
		}
		fmt.Fprintf(&out, "%q:", name)
		out.Write(v)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// maxReplyBytes bounds a reply that is not streamed.
const maxReplyBytes = 64 << 20

// send posts body and returns the response if its status is 200. id names the request, "" for none.
func send(ctx context.Context, c *http.Client, url string, header http.Header, id string, body []byte) (*http.Response, *Failure) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, failed(FailConnect, "%v", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	maps.Copy(req.Header, header)
	res, err := c.Do(req)
	if err != nil {
		return nil, sendFailure(err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // what there is of it
	return nil, failed(fmt.Sprintf("http-%d", res.StatusCode), "%s", errorText(text))
}

// stream posts body and reads the events into r.
func stream(ctx context.Context, c *http.Client, url string, header http.Header, id string, body []byte, r *reply) *Failure {
	res, f := send(ctx, c, url, header, id, body)
	if f != nil {
		return f
	}
	defer res.Body.Close()
	return readStream(res.Body, r)
}

// ask posts body and decodes the reply.
func ask(ctx context.Context, c *http.Client, url string, header http.Header, id string, body []byte, into any) *Failure {
	res, f := send(ctx, c, url, header, id, body)
	if f != nil {
		return f
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxReplyBytes))
	if err != nil {
		return transportFailure(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return failed(FailMalformed, "a reply: %s", jsonError(err))
	}
	return nil
}

// sendFailure is about a request that got no response.
func sendFailure(err error) *Failure {
	if f := contextFailure(err); f != nil {
		return f
	}
	return failed(FailConnect, "%v", err)
}

// transportFailure is about a response that broke off.
func transportFailure(err error) *Failure {
	if f := contextFailure(err); f != nil {
		return f
	}
	return failed(FailCut, "%v", err)
}

func contextFailure(err error) *Failure {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return failed(FailTimeout, "no end within the time limit")
	case errors.Is(err, context.Canceled):
		return failed(FailStopped, "the run was stopped")
	}
	return nil
}

// models asks an endpoint what it serves and returns the first.
func firstModel(ctx context.Context, c *http.Client, base string, header http.Header) (string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := get(ctx, c, base+"/v1/models", header, func(r io.Reader) error { return json.NewDecoder(r).Decode(&list) }); err != nil {
		return "", err
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("%s/v1/models lists none; name it with --model", base)
	}
	return list.Data[0].ID, nil
}

// get reads one page.
func get(ctx context.Context, c *http.Client, url string, header http.Header, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, header)
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: HTTP %d", url, res.StatusCode)
	}
	if err := read(io.LimitReader(res.Body, maxReplyBytes)); err != nil {
		return fmt.Errorf("GET %s: %w", url, err)
	}
	return nil
}
