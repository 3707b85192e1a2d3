package local

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/tarik-kv/tarik/internal/edge"
	"github.com/tarik-kv/tarik/internal/router"
)

// StackOptions are the flags of tarik up.
type StackOptions struct {
	Listen string // router, host:port; port 0 is any
	Admin  string // admin listener
	As     string // vLLM version the engines imitate
	// Return off starts the engines without bidirectional transfer and the router without reuse.
	Return bool
	// Engine is what both engines have in common; Listen, As and KV are filled in.
	Engine EngineOptions
	Router router.Config // Prefill and Decode are filled in
	Log    *slog.Logger
}

// Stack is a prefill engine, a decode engine and a router in front of them.
type Stack struct {
	P, D   *Engine
	Router *router.Router
	front  *Server
	admin  *Server
}

// pullThreshold is kv_recompute_threshold of the local pair, in tokens: one block. vLLM's 64 would
// hide the pulls of short replies, and here a pull always costs less than computing.
const pullThreshold = 16

// kvConfig is the --kv-transfer-config of one engine of the pair, as a real pair would have it.
func kvConfig(role string, bidirectional bool, ttl time.Duration) []byte {
	extra := map[string]any{"bidirectional_kv_xfer": bidirectional}
	if role == "kv_producer" {
		extra["kv_recompute_threshold"] = pullThreshold
	} else {
		extra["decoder_kv_blocks_ttl"] = ttl.Seconds()
	}
	b, err := json.Marshal(map[string]any{
		"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": "fail", "kv_connector_extra_config": extra,
	})
	if err != nil {
		panic("BUG: local: " + err.Error())
	}
	return b
}

// Up starts the three on loopback and returns when the router has seen both engines and, with the
// return path on, P has proved that it reads handles.
func Up(ctx context.Context, w *Weights, o StackOptions) (s *Stack, err error) {
	s = &Stack{}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	e := o.Engine
	e.As, e.Listen, e.Log = o.As, "127.0.0.1:0", o.Log
	e.KV = kvConfig("kv_producer", o.Return, o.Router.HandleTTL)
	if s.P, err = StartEngine(w, e); err != nil {
		return s, err
	}
	e.KV = kvConfig("kv_consumer", o.Return, o.Router.HandleTTL)
	if s.D, err = StartEngine(w, e); err != nil {
		return s, err
	}
	cfg := o.Router
	cfg.Threshold = pullThreshold
	cfg.Prefill, cfg.Decode, cfg.Reuse, cfg.Log = s.P.URL(), s.D.URL(), o.Return, o.Log
	if s.Router, err = router.New(cfg); err != nil {
		return s, err
	}
	if s.front, err = Listen(o.Listen, s.Router.Handler()); err != nil {
		return s, fmt.Errorf("--listen: %w", err)
	}
	if s.admin, err = Listen(o.Admin, s.Router.Admin()); err != nil {
		return s, fmt.Errorf("--admin: %w", err)
	}
	if err := s.Router.Ready(ctx); err != nil {
		return s, err
	}
	return s, nil
}

// URL is where clients go.
func (s *Stack) URL() string { return s.front.URL() }

// AdminURL is where operators look.
func (s *Stack) AdminURL() string { return s.admin.URL() }

// Close stops everything, the front first.
func (s *Stack) Close() {
	for _, srv := range []*Server{s.front, s.admin} {
		if srv != nil {
			srv.Close(shutdownGrace)
		}
	}
	if s.Router != nil {
		s.Router.Close()
	}
	for _, e := range []*Engine{s.D, s.P} {
		if e != nil {
			_ = e.Close() // nothing is lost that anybody could still want
		}
	}
}

// shutdownGrace is how long turns in progress may take to end when the local pair stops.
const shutdownGrace = time.Second

// Server is an HTTP server on a listener of its own.
type Server = edge.Server

// Listen serves h on addr (host:port; port 0 is any) until Close, with the edge's default limits.
func Listen(addr string, h http.Handler) (*Server, error) {
	return edge.Listen(edge.DefaultListen(addr), h, edge.Options{})
}
