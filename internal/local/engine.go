// Package local runs reference engines and a router on this machine: one engine (tarik engine), or
// a prefill engine, a decode engine and a router together (tarik up), and plays the demonstration
// conversation on them.
//
// Everything listens where it is told, on loopback by default. Close leaves nothing running.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/refengine/api"
	"github.com/tarik-kv/tarik/internal/refengine/engine"
	"github.com/tarik-kv/tarik/internal/refengine/model"
	"github.com/tarik-kv/tarik/internal/refengine/tokenizer"
)

// Weights are a loaded model with its tokenizer and chat template. Several engines may share them.
type Weights struct {
	Name      string // served model name
	Root      string // where it came from
	Model     *model.Model
	Tokenizer *tokenizer.Tokenizer
	Template  *tokenizer.Template
}

// tinySeed makes the built-in model; any number would do.
const tinySeed = 4

// Load reads a Hugging Face directory or a GGUF file of a Llama-family model. An empty path is the
// built-in model.
func Load(path string) (*Weights, error) {
	if path == "" {
		tok, tpl := tokenizer.Tiny()
		m := model.Tiny(tinySeed, tok.VocabSize(), tokenizer.TinyEmission(), tok.EOS())
		return &Weights{Name: "tiny", Root: "builtin:tiny", Model: m, Tokenizer: tok, Template: tpl}, nil
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	}
	w := &Weights{Name: strings.TrimSuffix(filepath.Base(filepath.Clean(path)), ".gguf"), Root: path}
	if st.IsDir() {
		if w.Model, err = model.LoadDir(path); err != nil {
			return nil, err
		}
		if w.Tokenizer, w.Template, err = tokenizer.LoadDir(path); err != nil {
			return nil, err
		}
		return w, nil
	}
	g, err := model.OpenGGUF(path)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	if w.Tokenizer, w.Template, err = tokenizer.FromGGUF(g); err != nil {
		return nil, err
	}
	if w.Model, err = model.LoadGGUF(path); err != nil {
		return nil, err
	}
	return w, nil
}

// EngineOptions are the flags of one engine.
type EngineOptions struct {
	Listen    string // host:port of the HTTP side; port 0 is any
	As        string // vLLM version to imitate, such as "vllm-0.33" or "0.32.0"
	KV        []byte // vLLM's --kv-transfer-config JSON; nil: none
	Name      string // served model name; "": the weights' own
	BlockSize int    // tokens
	KVTokens  int    // size of the KV pool in tokens; 0: what fits into 1 GiB, at most 262 144
	MaxLen    int    // tokens of prompt and reply; 0: the model's, or what the pool holds
	Batch     int    // token budget of a step
	SideHost  string // what peers are told to dial; "": the host of Listen
	SidePort  int    // side channel's port; 0 is any

	// NoPrefixCaching, NoTokenDetails and NoScaleOut turn off what tarik needs or likes to have.
	NoPrefixCaching, NoTokenDetails, NoScaleOut bool

	// Net replaces the network, for tests in which time is not the machine's. nil: TCP.
	Net Network

	Faults     engine.Faults
	WireFaults api.Faults
	FaultHdr   bool // let single requests choose wire faults by a header
	Log        *slog.Logger
}

// Network is where an engine listens and finds its peers.
type Network interface {
	Listen(addr string) (net.Listener, error)
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// Engine is one running reference engine.
type Engine struct {
	Core *engine.Engine
	url  string
	srv  *http.Server
	done chan struct{}
}

// URL is the address of the HTTP side.
func (e *Engine) URL() string { return e.url }

// defaultPool bounds a pool nobody has sized: its memory in bytes, its length in tokens.
const (
	defaultPoolBytes  = 1 << 30
	defaultPoolTokens = 1 << 18
)

// bytesPerToken is what the KV of one token takes in the pool: K and V of every layer in float32.
func bytesPerToken(c model.Config) int { return 2 * c.Layers * c.KVHeads * c.HeadDim * 4 }

// StartEngine starts an engine and returns when it answers.
func StartEngine(w *Weights, o EngineOptions) (*Engine, error) {
	version, err := Version(o.As)
	if err != nil {
		return nil, err
	}
	var kv *engine.KVTransferConfig
	if o.KV != nil {
		if kv, err = engine.ParseKVTransferConfig(o.KV, version); err != nil {
			return nil, fmt.Errorf("--kv-transfer-config: %w", err)
		}
	}
	listen := func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }
	if o.Net != nil {
		listen = o.Net.Listen
	}
	ln, err := listen(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	host, _, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	if o.SideHost == "" {
		o.SideHost = host
	}
	if o.BlockSize == 0 {
		o.BlockSize = 16
	}
	if o.KVTokens == 0 {
		o.KVTokens = min(defaultPoolTokens, defaultPoolBytes/bytesPerToken(w.Model.Config()))
	}
	if o.Name == "" {
		o.Name = w.Name
	}
	logf := func(string, ...any) {}
	if o.Log != nil {
		logf = func(format string, args ...any) { o.Log.Info(fmt.Sprintf(format, args...)) }
	}
	c := engine.Config{
		Version: version, ModelName: o.Name, KV: kv, BlockSize: o.BlockSize, Blocks: o.KVTokens/o.BlockSize + 1,
		MaxModelLen: o.MaxLen, MaxBatchedTokens: o.Batch, PrefixCaching: !o.NoPrefixCaching, Faults: o.Faults, Logf: logf,
		SideChannelHost: o.SideHost, SideChannelListen: net.JoinHostPort(host, fmt.Sprint(o.SidePort)),
	}
	if o.Net != nil {
		c.Dial, c.Listen = o.Net.Dial, o.Net.Listen
	}
	core, err := engine.New(c, w.Model, w.Tokenizer.EOS())
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	server := api.New(api.Options{
		Engine: core, Tokenizer: w.Tokenizer, Template: w.Template, ModelName: o.Name, Root: w.Root, Version: version,
		PromptTokensDetails: !o.NoTokenDetails, EnableScaleOut: !o.NoScaleOut, Faults: o.WireFaults, AllowFaultHeader: o.FaultHdr,
	})
	e := &Engine{
		Core: core, url: "http://" + ln.Addr().String(), done: make(chan struct{}),
		srv: &http.Server{Handler: server.Handler(), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 5 * time.Second},
	}
	go func() {
		defer close(e.done)
		_ = e.srv.Serve(ln) // ends with ErrServerClosed
	}()
	return e, nil
}

// Close stops the engine: requests in progress are aborted.
func (e *Engine) Close() error {
	err := e.Core.Close() // first, so that the requests in progress end
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if e.srv.Shutdown(ctx) != nil {
		err = errors.Join(err, e.srv.Close())
	}
	<-e.done
	return err
}

// Version reads an --as value: "vllm-0.33", "0.32.0".
func Version(as string) (string, error) {
	v := strings.TrimPrefix(as, "vllm-")
	switch {
	case v == "":
		return "0.33.0", nil
	case v == "0.25":
		return "0.25.1", nil // the release that was recorded
	case strings.Count(v, ".") == 1:
		v += ".0"
	}
	if _, err := kvp.CapabilityOf(v); err != nil {
		return "", fmt.Errorf("--as %q: %w; say vllm-0.25, vllm-0.32 or vllm-0.33", as, err)
	}
	return v, nil
}
