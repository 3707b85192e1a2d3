package api

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tarik-kv/tarik/internal/refengine/engine"
	"github.com/tarik-kv/tarik/internal/refengine/tokenizer"
)

// DefaultMaxBodyBytes bounds request bodies unless Options say otherwise.
const DefaultMaxBodyBytes = 64 << 20

// Backend is the engine behind the surface.
type Backend interface {
	// Submit starts a request. The channel ends after the output with a finish reason, also when the
	// request is aborted.
	Submit(r *engine.Request) (<-chan engine.Output, error)
	// Abort ends a request; an unknown or finished one is ignored.
	Abort(id string)
	Snapshot() engine.Stats
	// Config is what the engine runs with, defaults filled in.
	Config() engine.Config
}

var (
	_ Backend  = (*engine.Engine)(nil)
	_ Template = (*tokenizer.Template)(nil)
)

// Options say what to serve and which vLLM to be.
type Options struct {
	Engine    Backend
	Tokenizer *tokenizer.Tokenizer
	Template  Template // chat template; nil refuses chats by messages

	ModelName           string // served model name
	Root                string // "root" in /v1/models: path or name the model was loaded by; "" is ModelName
	Version             string // vLLM version imitated, "0.33.0"; "" is the engine's
	PromptTokensDetails bool   // --enable-prompt-tokens-details
	EnableScaleOut      bool   // --enable-scale-out
	ResponsesStore      bool   // VLLM_ENABLE_RESPONSES_API_STORE=1: responses are kept for previous_response_id; else "store" is ignored, as vLLM does
	ReasoningParser     bool   // text up to </think> goes to "reasoning" if chat_template_kwargs.enable_thinking is true

	MaxBodyBytes     int64  // larger bodies are refused with 413; 0 is DefaultMaxBodyBytes
	Faults           Faults // of every request
	AllowFaultHeader bool   // X-Refengine-Fault adds to Faults
}

// Server answers HTTP requests. Make one with New.
type Server struct {
	opts        Options
	config      engine.Config
	rel         release
	text        codec
	render      renderFunc
	maxModelLen int
	blockSize   int
	fingerprint string
	started     time.Time

	now       func() time.Time        // wall clock
	randomHex func(digits int) string // ids

	load    atomic.Int64 // requests being served
	stored  responseStore
	metrics frontMetrics
	handler http.Handler
}

// Template is a chat template; *tokenizer.Template is one.
type Template interface {
	Render(messages, tools []json.RawMessage, addGenerationPrompt bool, kwargs map[string]any) (string, error)
}

// renderFunc applies the chat template. messages are objects, tools is a list or nil.
type renderFunc func(messages []json.RawMessage, tools json.RawMessage, addPrompt bool, kwargs map[string]any) (string, error)

// New returns a server for opts. It holds nothing that needs closing.
func New(opts Options) *Server {
	s := newServer(opts, bpeCodec{opts.Tokenizer}, templateRenderer(opts.Template))
	return s
}

func newServer(opts Options, text codec, render renderFunc) *Server {
	if opts.MaxBodyBytes == 0 {
		opts.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if opts.Root == "" {
		opts.Root = opts.ModelName
	}
	config := opts.Engine.Config()
	if opts.Version == "" {
		opts.Version = config.Version
	}
	s := &Server{
		opts:        opts,
		config:      config,
		rel:         releaseOf(opts.Version),
		text:        text,
		render:      render,
		maxModelLen: config.MaxModelLen,
		blockSize:   config.BlockSize,
		started:     time.Now(),
		now:         time.Now,
		randomHex:   randomHex,
	}
	s.fingerprint = s.rel.fingerprint(opts, config)
	s.handler = s.routes()
	return s
}

// fingerprint is "vllm-0.33.0-da272133": the tail is a hash of what the engine was configured with.
func (r release) fingerprint(opts Options, c engine.Config) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d\x00%d", r.version, opts.ModelName, opts.Root, c.MaxModelLen, c.BlockSize))
	return "vllm-" + r.version + "-" + hex.EncodeToString(sum[:4])
}

// Handler returns the HTTP handler of all endpoints.
func (s *Server) Handler() http.Handler { return s.handler }

// apiHandler answers a request, or returns why it did not.
type apiHandler func(w http.ResponseWriter, r *http.Request) *apiError

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	handle := func(method, path string, h http.HandlerFunc) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != method && !(method == http.MethodGet && r.Method == http.MethodHead) {
				w.Header().Set("Allow", method)
				writeError(w, &apiError{http.StatusMethodNotAllowed, "Method Not Allowed", "Method Not Allowed", ""})
				return
			}
			h(w, r)
		})
	}
	post := func(path string, h apiHandler) {
		handle(http.MethodPost, path, s.counted(path, func(w http.ResponseWriter, r *http.Request) {
			s.load.Add(1)
			defer s.load.Add(-1)
			if err := h(w, r); err != nil && r.Context().Err() == nil {
				writeError(w, err)
			}
		}))
	}
	get := func(path string, h http.HandlerFunc) { handle(http.MethodGet, path, h) }
	post("/v1/chat/completions", s.chatCompletions)
	post("/v1/completions", s.completions)
	post("/v1/responses", s.responses)
	get("/v1/responses/{response_id}", s.counted("/v1/responses/{response_id}", s.storedResponse))
	post("/v1/responses/{response_id}/cancel", s.cancelResponse)
	post("/v1/messages", s.messages)
	post("/v1/messages/count_tokens", s.countTokens)
	post("/v1/chat/completions/render", s.scaleOut(s.renderChatRoute))
	post("/v1/completions/render", s.scaleOut(s.renderCompletionRoute))
	post("/v1/messages/render", s.scaleOut(s.renderMessagesRoute))
	post("/v1/responses/render", s.scaleOut(s.renderResponsesRoute))
	post("/tokenize", s.tokenize)
	post("/detokenize", s.detokenize)
	get("/v1/models", s.counted("/v1/models", s.models))
	get("/version", s.version)
	get("/health", s.health)
	get("/ping", s.health)
	get("/load", s.serverLoad)
	get("/metrics", s.metricsHandler().ServeHTTP)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, &apiError{http.StatusNotFound, "Not Found", "Not Found", ""})
	})
	return mux
}

// receive reads a request's body and its faults.
func (s *Server) receive(w http.ResponseWriter, r *http.Request) ([]byte, Faults, *apiError) {
	f := s.opts.Faults
	if text := r.Header.Get(FaultHeader); text != "" && s.opts.AllowFaultHeader {
		var err error
		if f, err = ParseFaults(f, text); err != nil {
			return nil, f, badRequest(FaultHeader, "%s", err)
		}
	}
	if f.Status != 0 {
		return nil, f, &apiError{f.Status, "InternalServerError", "Internal server error", ""}
	}
	// One rank only. A header that is not a number is ignored, as by vLLM.
	if rank, err := strconv.Atoi(r.Header.Get("X-Data-Parallel-Rank")); err == nil && rank != 0 {
		return nil, f, badRequest("", "data_parallel_rank %d is out of range [0, 1).", rank)
	}
	if !isJSON(r.Header.Get("Content-Type")) {
		e := invalidBody("", "", "", "")
		e.message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
		return nil, f, e
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opts.MaxBodyBytes))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, f, &apiError{
				http.StatusRequestEntityTooLarge, "Request Entity Too Large",
				fmt.Sprintf("Request body is larger than %d bytes", tooLarge.Limit), "",
			}
		}
		return nil, f, badRequest("", "There was an error parsing the body")
	}
	return body, f, nil
}

func writeError(w http.ResponseWriter, e *apiError) { writeJSON(w, e.status, e.json()) }

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client is gone: nobody to tell
}

// replaced answers in place of the engine if a fault says so.
func (s *Server) replaced(out *output, stream bool) bool {
	if !out.f.Garbage && !out.f.FinishError {
		return false
	}
	if out.wait() != nil {
		return true
	}
	const nonsense = "<html><body>502 is not what this says</body></html>\n"
	const failed = `{"id":"error","object":"","created":0,"model":"","choices":[{"index":0,"finish_reason":"error"}],"usage":{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0}}`
	switch {
	case out.f.Garbage && stream:
		if out.open() == nil {
			_ = out.write([]byte(nonsense)) // the client is gone: nobody to tell
		}
	case out.f.Garbage:
		out.document(http.StatusOK, []byte(nonsense))
	case stream:
		if out.open() == nil && out.event([]byte(failed)) == nil {
			_ = out.done()
		}
	default:
		out.document(http.StatusOK, []byte(failed))
	}
	return true
}

func (s *Server) checkModel(name string) *apiError {
	if name == "" || name == s.opts.ModelName {
		return nil
	}
	return &apiError{http.StatusNotFound, "NotFoundError", fmt.Sprintf("The model `%s` does not exist.", name), "model"}
}

// requestID is the client's part of all ids of a request: its header, else its body's request_id, else a
// random one.
func (s *Server) requestID(r *http.Request, body string) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	if body != "" {
		return body
	}
	return s.randomHex(16)
}

func randomHex(digits int) string {
	b := make([]byte, (digits+1)/2)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)[:digits]
}

// sequences makes the choices of one prompt. id is the request's id without the engine's own part, which
// is a random tail; with several choices each has its number in front.
func (s *Server) sequences(q *common, id string, prompt []int32, f Faults) ([]*sequence, []*engine.Request) {
	id += "-" + s.randomHex(8)
	s.metrics.observeN(q.n)
	seqs := make([]*sequence, q.n)
	reqs := make([]*engine.Request, q.n)
	for i := range q.n {
		own := id
		if q.n > 1 {
			own = strconv.Itoa(i) + "_" + id
		}
		var seed *int64
		if q.seed != nil {
			v := *q.seed + int64(i)
			seed = &v
		}
		reqs[i] = &engine.Request{
			ID: own, Prompt: prompt, Salt: q.salt, Params: q.kv,
			MaxTokens: q.maxTokens, MinTokens: q.minTokens, IgnoreEOS: q.ignoreEOS, StopTokenIDs: q.stopTokenIDs,
			Temperature: q.temperature, TopP: q.topP, TopK: q.topK, Seed: seed,
			Logprobs: q.logprobs, PromptLogprobs: q.promptLogprobs, DropParams: f.NullParams,
		}
		seqs[i] = newSequence(own, s.text.stream(q.keepSpecial), &q.sampling)
	}
	return seqs, reqs
}

// count notes what the reply's usage says of cached tokens: the last delta that came decides.
func (s *Server) count(u *usage, promptTokens int, d delta) {
	u.cached = d.cached
	u.created = s.createdTokens(promptTokens, d.here)
	if d.stopString {
		s.metrics.stopStrings.Add(1)
	}
}
