package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/refengine/model"
)

// hashModel computes nothing but is as sensitive as a real model: a token's KV and logits depend on its
// id and on every KV row before it. A wrong block anywhere changes what comes next.
type hashModel struct {
	blockSize int
	vocab     int
	kv        []float32
}

const fakeFloats = 2 // per token

var fakeShape = model.Config{Name: "fake", VocabSize: 512, Layers: 30, KVHeads: 3, HeadDim: 64, MaxPositions: 1 << 20}

func newHashModel(blocks, blockSize int) *hashModel {
	return &hashModel{blockSize: blockSize, vocab: fakeShape.VocabSize, kv: make([]float32, blocks*blockSize*fakeFloats)}
}

func (m *hashModel) Block(id int) []float32 {
	n := m.blockSize * fakeFloats
	return m.kv[id*n : (id+1)*n : (id+1)*n]
}

func (m *hashModel) row(c model.Chunk, pos int) []float32 {
	b := m.Block(c.Blocks[pos/m.blockSize])
	return b[pos%m.blockSize*fakeFloats:][:fakeFloats]
}

func mix(h uint64, row []float32) uint64 {
	h ^= uint64(math.Float32bits(row[0]))<<32 | uint64(math.Float32bits(row[1]))
	h *= 0x9e3779b97f4a7c15
	return h ^ h>>29
}

func (m *hashModel) Forward(batch []model.Chunk) [][]float32 {
	out := make([][]float32, len(batch))
	for i, c := range batch {
		h := uint64(1)
		for pos := range c.Start {
			h = mix(h, m.row(c, pos))
		}
		for j, token := range c.Tokens {
			r := m.row(c, c.Start+j)
			r[0], r[1] = float32(token)+1, float32(h>>40)
			h = mix(h, r)
			if j >= len(c.Tokens)-c.Logits {
				for v := range m.vocab {
					x := (h ^ uint64(v)*0xff51afd7ed558ccd) * 0xc4ceb9fe1a85ec53
					out[i] = append(out[i], float32(x>>44))
				}
			}
		}
	}
	return out
}

// network is an in-memory network for engines. Addresses are "host:port".
type network struct {
	mu        sync.Mutex
	listeners map[string]*memListener
	nextPort  int
}

func newNetwork() *network {
	return &network{listeners: make(map[string]*memListener), nextPort: 5600}
}

type memListener struct {
	n      *network
	addr   memAddr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

type memAddr string

func (a memAddr) Network() string { return "mem" }
func (a memAddr) String() string  { return string(a) }

func (n *network) listen(addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if port == "0" {
		port = fmt.Sprint(n.nextPort)
		n.nextPort++
	}
	l := &memListener{n: n, addr: memAddr(net.JoinHostPort(host, port)), conns: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[string(l.addr)] = l
	return l, nil
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: connection refused", addr)
	}
	a, b := net.Pipe()
	select {
	case l.conns <- a:
		return b, nil
	case <-l.closed:
	case <-ctx.Done():
	}
	return nil, fmt.Errorf("dial %s: connection refused", addr)
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.n.mu.Lock()
		defer l.n.mu.Unlock()
		if l.n.listeners[string(l.addr)] == l {
			delete(l.n.listeners, string(l.addr))
		}
	})
	return nil
}

func (l *memListener) Addr() net.Addr { return l.addr }

// logs collects log lines.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// count says how many lines contain s.
func (l *logs) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if strings.Contains(line, s) {
			n++
		}
	}
	return n
}

// node is an engine under test with its model and log.
type node struct {
	*Engine
	t    testing.TB
	m    *hashModel
	log  *logs
	next int
}

// settings of the measured pair: block size 128, threshold 64.
func measured() Config {
	return Config{BlockSize: 128, Blocks: 200, MaxModelLen: 8192, MaxBatchedTokens: 2048, PrefixCaching: true}
}

func roleP() *KVTransferConfig {
	return &KVTransferConfig{Connector: "NixlConnector", Role: "kv_producer", FailurePolicy: "fail", Bidirectional: true, Threshold: 64}
}

func roleD() *KVTransferConfig {
	kv := roleP()
	kv.Role = "kv_consumer"
	return kv
}

// startNode starts an engine on n and checks, when the test ends, that its books balance.
func startNode(t testing.TB, n *network, cfg Config) *node {
	t.Helper()
	l := &logs{}
	cfg.Logf, cfg.Dial, cfg.Listen = l.logf, n.dial, n.listen
	if cfg.SideChannelHost == "" {
		cfg.SideChannelHost = "127.0.0.1"
	}
	m := newHashModel(cfg.Blocks, cfg.BlockSize)
	e, err := NewCompute(cfg, fakeShape, m, []int32{511})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.CheckAccounting(); err != nil {
			t.Errorf("accounting of %s: %v", cfg.Version, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return &node{Engine: e, t: t, m: m, log: l}
}

// request is a greedy request that ends by length.
func (n *node) request(prompt []int32, maxTokens int, params string) *Request {
	n.next++
	return &Request{
		ID: fmt.Sprintf("cmpl-%d-0-%08x", n.next, n.next), Prompt: prompt, MaxTokens: maxTokens, IgnoreEOS: true,
		Params: json.RawMessage(params), Logprobs: -1, PromptLogprobs: -1,
	}
}

// reply is everything a request said.
type reply struct {
	Output
	ids []int32
	n   int // outputs
}

func collect(ch <-chan Output) reply {
	var r reply
	for o := range ch {
		r.ids = append(r.ids, o.Tokens...)
		r.Output = o
		r.n++
	}
	return r
}

// do runs a request to its end.
func (n *node) do(r *Request) reply {
	n.t.Helper()
	ch, err := n.Submit(r)
	if err != nil {
		n.t.Fatalf("submit %s: %v", r.ID, err)
	}
	return collect(ch)
}

// run is do for a prompt and params.
func (n *node) run(prompt []int32, maxTokens int, params string) reply {
	n.t.Helper()
	return n.do(n.request(prompt, maxTokens, params))
}

const nullForm = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// ids makes n token ids that depend on seed.
func ids(seed, n int) []int32 {
	out := make([]int32, n)
	x := uint64(seed)*2654435761 + 12345
	for i := range out {
		x = x*6364136223846793005 + 1442695040888963407
		out[i] = int32(x >> 33 % 500)
	}
	return out
}

func join(parts ...[]int32) []int32 {
	var out []int32
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// set returns params with members replaced; a nil value removes one.
func set(t testing.TB, params []byte, kv ...any) string {
	t.Helper()
	var m map[string]any
	d := json.NewDecoder(strings.NewReader(string(params)))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		t.Fatalf("params %s: %v", params, err)
	}
	for i := 0; i < len(kv); i += 2 {
		if k := kv[i].(string); kv[i+1] == nil {
			delete(m, k)
		} else {
			m[k] = kv[i+1]
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}
