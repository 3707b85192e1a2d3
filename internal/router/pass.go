package router

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/fleet"
	"github.com/tarik-kv/tarik/internal/tenant"
)

// Pass is a path that goes to an engine as it is, less what only the router may say.
type Pass struct {
	Path    string     // as of http.ServeMux: all below it if it ends in a slash
	Methods []string   // HTTP methods
	Engine  fleet.Role // "": the first one that is up
}

// passThrough gives a request that generates nothing to the first of the engines that is up.
func (r *Router) passThrough(engines ...*fleet.Engine) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) { r.pass(w, req, engines, false) }
}

// passRoute serves one configured path. An engine may cache what it makes of a request, so a body
// gets its caller's salt: what is passed on must not cross tenants either.
func (r *Router) passRoute(p Pass) http.HandlerFunc {
	engines := []*fleet.Engine{r.prefill, r.decode}
	switch p.Engine {
	case fleet.Prefill:
		engines = engines[:1]
	case fleet.Decode:
		engines = engines[1:]
	}
	return func(w http.ResponseWriter, req *http.Request) {
		if !slices.Contains(p.Methods, req.Method) {
			allowed := strings.Join(p.Methods, ", ")
			w.Header().Set("Allow", allowed)
			(&failure{status: http.StatusMethodNotAllowed, code: "method-not-allowed", message: "this path takes " + allowed + " only"}).at(req.URL.Path).write(w)
			return
		}
		r.pass(w, req, engines, true)
	}
}

func (r *Router) pass(w http.ResponseWriter, req *http.Request, engines []*fleet.Engine, salted bool) {
	var payload []byte
	if req.Method == http.MethodPost || req.ContentLength != 0 {
		body, f := r.readBody(w, req)
		if f != nil {
			f.at(req.URL.Path).write(w)
			return
		}
		doc, err := bodyedit.Scan(body)
		if err != nil {
			badRequest("", fmt.Sprintf("request body: %v", err)).at(req.URL.Path).write(w)
			return
		}
		caller, _ := tenant.FromContext(req.Context())
		model, _ := bodyedit.String(doc.Get("model"))
		if f := mayUse(caller, model); f != nil {
			f.at(req.URL.Path).write(w)
			return
		}
		e := doc.Edit()
		if e.DeleteFold(ownFields...) > 0 {
			r.metrics.Stripped.Inc()
		}
		if salted {
			clientSalt, _ := bodyedit.String(doc.Get("cache_salt"))
			if salt := r.salt(caller.Tenant, clientSalt); salt != "" {
				e.Set("cache_salt", quote(salt))
			}
		}
		payload = e.Bytes()
	}
	target := req.URL.EscapedPath()
	if req.URL.RawQuery != "" {
		target += "?" + req.URL.RawQuery
	}
	for _, e := range engines {
		if !e.Info().Up {
			continue
		}
		out, err := http.NewRequestWithContext(req.Context(), req.Method, e.String()+target, bytes.NewReader(payload))
		if err != nil {
			break
		}
		out.Header = forEngine(req.Header)
		if ct := req.Header.Get("Content-Type"); ct != "" {
			out.Header.Set("Content-Type", ct)
		}
		res, err := r.client.Do(out)
		if err != nil {
			continue
		}
		copyHeaders(w.Header(), res.Header)
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body) // the client or the engine has left; the reply ends short
		_ = res.Body.Close()
		return
	}
	engineDown("no engine answers").at(req.URL.Path).write(w)
}

func orUp(i fleet.Info) string {
	if i.Up {
		return "up"
	}
	return i.Err
}

// health says whether turns can be served: D is enough.
func (r *Router) health(w http.ResponseWriter, _ *http.Request) {
	if d := r.decode.Info(); !d.Up {
		engineDown("the decode engine does not answer").write(w)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// engines answers GET /engines: what the router knows of its engines and keeps of conversations.
func (r *Router) engines(w http.ResponseWriter, _ *http.Request) {
	type engine struct {
		Role      string `json:"role"`
		URL       string `json:"url"`
		Up        bool   `json:"up"`
		Version   string `json:"version"`
		BlockSize int    `json:"block_size"`
		Handles   string `json:"handles,omitempty"` // of P: proven, unproven, distrusted
		Why       string `json:"why,omitempty"`
	}
	var out struct {
		Engines  []engine `json:"engines"`
		Mismatch string   `json:"mismatch,omitempty"`
		Turns    int      `json:"turns_known"`
		Handles  int      `json:"handles_held"`
		Bytes    int      `json:"handle_bytes"`
		Uptime   float64  `json:"uptime_s"`
	}
	for _, e := range []*fleet.Engine{r.prefill, r.decode} {
		i := e.Info()
		j := engine{Role: string(e.Role), URL: e.String(), Up: i.Up, Version: i.Version, BlockSize: i.BlockSize, Why: i.Err}
		if e.Role == fleet.Prefill {
			j.Handles = string(i.Trust)
			if i.TrustWhy != "" {
				j.Why = i.TrustWhy
			}
		}
		out.Engines = append(out.Engines, j)
	}
	st := r.store.Stats()
	out.Mismatch = fleet.Mismatch(r.prefill.Info(), r.decode.Info())
	out.Turns, out.Handles, out.Bytes = st.Turns, st.Held, st.Bytes
	out.Uptime = r.now().Truncate(time.Millisecond).Seconds()
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	_ = enc.Encode(out) // the reader has left
}

func metricsHandler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{})
}
