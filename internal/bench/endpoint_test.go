package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// asked is what a fake endpoint was asked.
type asked struct {
	Model    string            `json:"model"`
	Messages []json.RawMessage `json:"messages"`
	Salt     string            `json:"cache_salt"`
	Max      int               `json:"max_tokens"`
	Min      int               `json:"min_tokens"`
	raw      []byte
	header   http.Header
	gone     <-chan struct{} // closed when the client hangs up
	number   int             // of the chat requests of this endpoint, from 0
}

// endpoint is an OpenAI-compatible server whose delays are known. Its fields are set before it is started.
type endpoint struct {
	first func(q asked) time.Duration               // until the first content
	gap   time.Duration                             // between tokens
	text  func(q asked, token int) string           // of a token; nil: words that follow from the prompt
	serve func(w http.ResponseWriter, q asked) bool // true: it has answered

	mu    sync.Mutex
	chats []asked
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		fmt.Fprint(w, `{"data":[{"id":"fake"}]}`)
		return
	case "/version":
		fmt.Fprint(w, `{"version":"1.2.3"}`)
		return
	case "/metrics":
		e.mu.Lock()
		defer e.mu.Unlock()
		fmt.Fprintf(w, "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{engine=\"0\",model_name=\"fake\"} %d\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n", 10*len(e.chats))
		return
	case "/v1/chat/completions":
	default:
		http.NotFound(w, r)
		return
	}
	var q asked
	var raw json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&raw); err != nil || json.Unmarshal(raw, &q) != nil {
		http.Error(w, "bad", http.StatusBadRequest)
		return
	}
	q.raw, q.header, q.gone = raw, r.Header, r.Context().Done()
	e.mu.Lock()
	q.number = len(e.chats)
	e.chats = append(e.chats, q)
	e.mu.Unlock()
	if e.serve != nil && e.serve(w, q) {
		return
	}
	e.answer(w, q)
}

func (e *endpoint) answer(w http.ResponseWriter, q asked) {
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(format string, args ...any) {
		fmt.Fprintf(w, "data: "+format+"\n\n", args...)
		w.(http.Flusher).Flush()
	}
	event(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
	if e.first != nil {
		time.Sleep(e.first(q))
	}
	chars := 0
	for _, m := range q.Messages {
		chars += len(m)
	}
	for i := range q.Max {
		if i > 0 {
			time.Sleep(e.gap)
		}
		text := fmt.Sprintf("w%d ", (chars+i)%97)
		if e.text != nil {
			text = e.text(q, i)
		}
		event(`{"choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`, text)
	}
	event(`{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`)
	event(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}}`, 20+chars/5, q.Max)
	event("[DONE]")
}

// turns are the chat requests that were no calibration.
func (e *endpoint) turns() []asked {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []asked
	for _, q := range e.chats {
		if q.Max > 1 {
			list = append(list, q)
		}
	}
	return list
}

// pipes is a network in memory: hosts with handlers.
type pipes struct {
	hosts map[string]chan net.Conn
	stop  []func()
}

type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.done); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// serve starts an HTTP server for each host and returns a client for them.
func serve(hosts map[string]http.Handler) (*http.Client, func()) {
	n := &pipes{hosts: map[string]chan net.Conn{}}
	for host, h := range hosts {
		l := &pipeListener{make(chan net.Conn), make(chan struct{})}
		n.hosts[host+":80"] = l.conns
		srv := &http.Server{Handler: h}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = srv.Serve(l)
		}()
		n.stop = append(n.stop, func() { _ = srv.Close(); <-ended })
	}
	tr := &http.Transport{
		DisableCompression: true, MaxIdleConnsPerHost: 1000,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			conns, ok := n.hosts[addr]
			if !ok {
				return nil, fmt.Errorf("nobody listens on %s", addr)
			}
			client, server := net.Pipe()
			select {
			case conns <- server:
				return client, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}
	return &http.Client{Transport: tr}, func() {
		tr.CloseIdleConnections()
		for _, stop := range n.stop {
			stop()
		}
	}
}

// virtual measures a plan in virtual time, over real HTTP in memory.
func virtual(t *testing.T, plan Plan, hosts map[string]http.Handler, check func(t *testing.T, r *Report, j *Journal)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, stop := serve(hosts)
		defer stop()
		j := memoryJournal()
		r, err := Run(t.Context(), plan, Surroundings{Client: client, Journal: j})
		if err != nil {
			t.Fatal(err)
		}
		check(t, r, j)
	})
}

// smallPlan measures one length on the named arms, each at http://NAME.
func smallPlan(arms ...string) Plan {
	p := DefaultPlan()
	p.Lengths, p.Reply, p.Separate, p.Thinks = []int{256}, 4, SeparateNone, []ThinkTime{{Mean: time.Second}}
	for _, a := range arms {
		p.Arms = append(p.Arms, Arm{Name: a, URL: "http://" + a, Header: http.Header{}})
	}
	return p
}

func hosts(m map[string]*endpoint) map[string]http.Handler {
	all := map[string]http.Handler{}
	for name, e := range m {
		all[name] = e
	}
	return all
}

// text puts a report into words, for looking into it.
func text(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
