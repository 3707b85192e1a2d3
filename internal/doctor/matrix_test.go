package doctor

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/local"
	"github.com/tarik-kv/tarik/internal/refengine/api"
	"github.com/tarik-kv/tarik/internal/refengine/engine"
)

// fault is one row of the fault matrix: a pair that is broken in one way, and all that doctor may say about it.
type fault struct {
	name  string
	spoil func(r *rig)
	want  []string // findings above info: check, severity, subject
	left  bool     // engines of this kind cannot be left clean
}

// bump adds to the samples of a family whose line matches.
func bump(family, match string, add float64) func(body string) string {
	line := regexp.MustCompile(`(?m)^(` + regexp.QuoteMeta(family) + `(?:\{[^}]*\})?) (\S+)$`)
	return func(body string) string {
		return line.ReplaceAllStringFunc(body, func(l string) string {
			m := line.FindStringSubmatch(l)
			if !strings.Contains(m[1], match) {
				return l
			}
			v, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				panic("BUG: " + l)
			}
			return fmt.Sprintf("%s %g", m[1], v+add)
		})
	}
}

// metrics has /metrics changed.
func metrics(changes ...func(string) string) func(http.Handler) http.Handler {
	return answering("/metrics", func(body string) string {
		for _, c := range changes {
			body = c(body)
		}
		return body
	})
}

func replace(old, with string) func(string) string {
	return func(s string) string { return strings.ReplaceAll(s, old, with) }
}

func engineLog(text string) *LogFacts {
	l, err := ReadLog(strings.NewReader(text))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return l
}

// logged tells doctor a line of both engines' logs.
func logged(pLine, dLine string) func(r *rig) {
	return func(r *rig) {
		r.with = func(o *Options) {
			o.PrefillLog = engineLog("(EngineCore) INFO 11-29 20:58:48 [base_worker.py:249] Initializing NIXL wrapper\n" + pLine + "\n")
			o.DecodeLog = engineLog("(EngineCore) INFO 11-29 20:58:48 [base_worker.py:249] Initializing NIXL wrapper\n" + dLine + "\n")
		}
	}
}

// told gives doctor settings that the engines do not run with.
func told(kvP, kvD string) func(r *rig) {
	return func(r *rig) {
		r.with = func(o *Options) { o.PrefillKV, o.DecodeKV = []byte(kvP), []byte(kvD) }
	}
}

// settings has the engines run with settings, and doctor told.
func settings(kvP, kvD string) func(r *rig) {
	return func(r *rig) {
		r.kv = [2]string{kvP, kvD}
		told(kvP, kvD)(r)
	}
}

// untold has the engines run with settings that doctor does not know.
func untold(kvP, kvD string) func(r *rig) {
	return func(r *rig) {
		r.kv = [2]string{kvP, kvD}
		r.with = func(o *Options) { o.Patience = 700 * time.Millisecond }
	}
}

func with(kv, old, new string) string { return strings.Replace(kv, old, new, 1) }

// counted is metrics in front of both engines.
func gates(gp, gd func(http.Handler) http.Handler) func(r *rig) {
	return func(r *rig) { r.gate = [2]func(http.Handler) http.Handler{gp, gd} }
}

// adminStub is a router's admin address.
func adminStub(engines func(r *rig) string, metrics, turns string) func(r *rig) {
	return func(r *rig) {
		r.with = func(o *Options) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				switch req.URL.Path {
				case "/engines":
					_, _ = io.WriteString(w, engines(r))
				case "/turns":
					_, _ = io.WriteString(w, turns)
				case "/metrics":
					_, _ = io.WriteString(w, metrics)
				default:
					http.NotFound(w, req)
				}
			}))
			r.t.Cleanup(s.Close)
			o.Router = s.URL
		}
	}
}

func goodEngines(r *rig) string {
	return fmt.Sprintf(`{"engines":[{"role":"prefill","url":%q,"up":true,"handles":"proven"},{"role":"decode","url":%q,"up":true}]}`, r.urls[p], r.urls[d])
}

// configured tells doctor what a router's file says.
func configured(c RouterConfig) func(r *rig) {
	return func(r *rig) {
		c.Source, c.Margin = "tarik.yaml", 30*time.Second
		r.with = func(o *Options) { o.Config, o.PrefillKV, o.DecodeKV = &c, []byte(goodP), []byte(goodD) }
	}
}

// named reaches the engines by names, as if they were on two machines.
func named(r *rig) {
	r.with = func(o *Options) {
		at := map[string]string{"prefill.test:80": strings.TrimPrefix(r.urls[p], "http://"), "decode.test:80": strings.TrimPrefix(r.urls[d], "http://")}
		o.Client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, at[addr])
		}
		o.Prefill, o.Decode = "http://prefill.test", "http://decode.test"
	}
}

// host is what a machine shows.
func hostOf(files map[string]string, tools map[string]string) *HostFacts {
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return Host{Root: root, Run: func(_ context.Context, name string, _ ...string) ([]byte, bool) {
		out, ok := tools[name]
		return []byte(out), ok
	}}.Look(context.Background())
}

// onCall runs f before the nth completion.
func onCall(n int32, f func()) func(http.Handler) http.Handler {
	var calls atomic.Int32
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, "/completions") && calls.Add(1) == n {
				f()
			}
			next.ServeHTTP(w, req)
		})
	}
}

var (
	blockList = regexp.MustCompile(`"remote_block_ids":\[\[([0-9,]+)\]\]`)
	sidePort  = regexp.MustCompile(`"remote_port":\d+`)
	expiry    = regexp.MustCompile(`"remote_blocks_expiry_time":[0-9.]+,`)
	salt      = regexp.MustCompile(`"cache_salt":"[0-9a-f]+",?`)
)

// rotated moves the first block of a list to its end.
func rotated(body string) string {
	return blockList.ReplaceAllStringFunc(body, func(s string) string {
		ids := strings.Split(blockList.FindStringSubmatch(s)[1], ",")
		return `"remote_block_ids":[[` + strings.Join(append(ids[1:], ids[0]), ",") + `]]`
	})
}

// held is an answer as nginx with buffering would pass it on: all of it at once.
func held(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req.Header.Set("Accept-Encoding", "identity")
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, req)
		w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	})
}

var queueBuckets = func() []func(string) string {
	var all []func(string) string
	for _, le := range []string{"60", "120", "240", "480", "960", "1920", "7680", "+Inf"} {
		all = append(all, bump(mQueue+"_bucket", `le="`+le+`"`, 100))
	}
	return all
}()

func receipts(n int, why string, local, pulled int) string {
	turn := fmt.Sprintf(`{"turn_number":2,"endpoint":"chat","streamed":true,"arm":"recompute","why":%q,"prompt_tokens":2000,"p_local_tokens":%d,"p_pulled_tokens":%d,"status":200}`, why, local, pulled)
	return "[" + strings.TrimSuffix(strings.Repeat(turn+",", n), ",") + "]"
}

const (
	argsLine = "(APIServer) INFO 11-29 20:57:48 [api_utils.py:273] non-default args: "
	laneLine = "[1566814148.941358] [p:3473 :0] ucp_worker.c:1888 UCX  INFO  ep_cfg[2]: rma(tcp/eth0); am(tcp/eth0)"
	failLine = "(EngineCore) ERROR 11-29 21:11:53 [base_worker.py:829] NIXL transfer failure: handshake_failed | Context: {'failure_type': 'handshake_failed'}"
)

var faults = []fault{
	{"decode is not there", func(r *rig) {
		r.with = func(o *Options) { o.Decode = "http://127.0.0.1:1" }
	}, []string{"engine-reachable error decode"}, false},
	{"prefill's engine is dead behind its front", gates(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	}, nil), []string{"engine-reachable error prefill"}, false},
	{"decode wants a key", gates(nil, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasPrefix(req.URL.Path, "/v1/") {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, req)
		})
	}), []string{"engine-reachable error decode"}, false},
	{"the URL is not an engine's", gates(nil, func(http.Handler) http.Handler { return http.NotFoundHandler() }), []string{"engine-reachable error decode"}, false},
	{
		"a release that cannot do it", gates(answering("/version", replace("0.33.0", "0.20.2")), answering("/version", replace("0.33.0", "0.20.2"))),
		[]string{"version-known error prefill", "version-known error decode"},
		false,
	},
	{"half of an upgrade", func(r *rig) { r.as[p] = "vllm-0.32" }, []string{"same-version error pair"}, false},
	{"other models", func(r *rig) { r.opt[p] = func(o *local.EngineOptions) { o.Name = "other" } }, []string{"same-model error pair"}, false},
	{"one model by two names", gates(answering("/v1/models", replace("builtin:tiny", "/models/tiny")), nil), []string{"same-model error pair"}, false},
	{"other limits", func(r *rig) { r.opt[d] = func(o *local.EngineOptions) { o.MaxLen = 2048 } }, []string{"same-limits warning pair"}, false},
	{"other block sizes", func(r *rig) { r.opt[p] = func(o *local.EngineOptions) { o.BlockSize = 32 } }, []string{"block-size error pair"}, false},
	{"other types of KV", gates(metrics(replace(`cache_dtype="auto"`, `cache_dtype="fp8"`)), nil), []string{"cache-layout error pair"}, false},
	{
		"other layouts of KV", gates(metrics(replace(`kv_cache_layout="None"`, `kv_cache_layout="NHD"`)), metrics(replace(`kv_cache_layout="None"`, `kv_cache_layout="HND"`))),
		[]string{"cache-layout error pair"},
		false,
	},
	{"parallel sizes that do not divide", func(r *rig) {
		gates(answering("/v1/completions", replace(`"tp_size":1`, `"tp_size":2`)), answering("/v1/completions", replace(`"tp_size":1`, `"tp_size":3`)))(r)
	}, []string{"parallel-sizes error pair"}, false},
	{
		"a draft model on decode alone", logged(argsLine+`{'model': 'm'}`, argsLine+`{'model': 'm', 'speculative_config': {'method': 'eagle', 'num_speculative_tokens': 3}}`),
		[]string{"speculation error pair"},
		false,
	},
	{"n-grams on decode alone", logged(argsLine+`{'model': 'm'}`, argsLine+`{'model': 'm', 'speculative_config': {'method': 'ngram'}}`), []string{}, false},
	{"no prefix cache on prefill", func(r *rig) { r.opt[p] = func(o *local.EngineOptions) { o.NoPrefixCaching = true } }, []string{"prefix-caching error prefill"}, false},
	{"no prefix cache on decode", func(r *rig) { r.opt[d] = func(o *local.EngineOptions) { o.NoPrefixCaching = true } }, []string{"prefix-caching warning decode"}, false},
	{"development mode", gates(nil, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/server_info" {
				_, _ = io.WriteString(w, `{"vllm_config":{"kv_transfer_config":`+goodD+`},"vllm_env":{},"system_env":{}}`)
				return
			}
			next.ServeHTTP(w, req)
		})
	}), []string{"dev-mode warning decode"}, false},

	{"prefill without a connector", func(r *rig) { r.kv[p] = "" }, []string{"connector error prefill"}, false},
	{"decode without a connector", func(r *rig) { r.kv[d] = "" }, []string{"connector error decode"}, true},
	{"the push connector", told(goodP, with(goodD, "NixlConnector", "NixlPushConnector")), []string{"connector error decode"}, false},
	{"a shared store", told(with(goodP, "NixlConnector", "LMCacheConnectorV1"), goodD), []string{"connector error prefill"}, false},
	{
		"offloading before NIXL", told(`{"kv_connector":"MultiConnector","kv_role":"kv_producer","kv_connector_extra_config":{"bidirectional_kv_xfer":true,"connectors":[{"kv_connector":"OffloadingConnector"},{"kv_connector":"NixlConnector"}]}}`, goodD),
		[]string{"connector error prefill"},
		false,
	},
	{"kv_both", settings(with(goodP, "kv_producer", "kv_both"), with(goodD, "kv_consumer", "kv_both")), []string{"roles warning prefill", "roles warning decode"}, false},
	{"roles swapped", settings(with(goodP, "kv_producer", "kv_consumer"), with(goodD, "kv_consumer", "kv_producer")), []string{"roles warning prefill", "roles warning decode"}, false},
	{"the flag at the top level", told(`{"kv_connector":"NixlConnector","kv_role":"kv_producer","bidirectional_kv_xfer":true}`, goodD), []string{"config-keys error prefill"}, false},
	{"a key that 0.32 removed", told(with(goodP, `"kv_role"`, `"kv_rank":0,"kv_role"`), goodD), []string{"config-keys error prefill"}, false},
	{"a slip in the TTL's name", settings(goodP, with(goodD, "decoder_kv_blocks_ttl", "decoder_kv_block_ttl")), []string{"config-keys warning decode"}, false},
	{"a slip in the flag's name", settings(with(goodP, "bidirectional_kv_xfer", "bidirectional_kv_xfers"), goodD), []string{"config-keys error prefill"}, false},
	{"the flag as a text", settings(goodP, with(goodD, `"bidirectional_kv_xfer":true`, `"bidirectional_kv_xfer":"false"`)), []string{"config-keys warning decode"}, false},
	{"cross-layer blocks where there are none", settings(with(goodP, `"kv_recompute`, `"enable_cross_layers_blocks":"True","kv_recompute`), goodD), []string{"config-keys warning prefill"}, false},
	{"the threshold's name of the review", settings(with(goodP, "kv_recompute_threshold", "remote_pull_threshold"), goodD), []string{"threshold-key warning prefill"}, false},
	{"the threshold on decode", settings(with(goodP, `,"kv_recompute_threshold":64`, ""), with(goodD, `"decoder`, `"kv_recompute_threshold":32,"decoder`)), []string{"threshold-key warning decode"}, false},
	{"a threshold that tarik's proof does not reach", settings(with(goodP, ":64", ":500"), goodD), []string{"threshold-value error prefill"}, false},
	{"a threshold that nothing reaches, not known", untold(with(goodP, ":64", ":100000"), goodD), []string{"threshold-value error prefill"}, false},
	{"a threshold that replies do not reach, not known", untold(with(goodP, ":64", ":150"), goodD), []string{"threshold-value warning prefill"}, false},
	{"policy recompute", settings(with(goodP, `"fail"`, `"recompute"`), goodD), []string{"failure-policy error prefill"}, false},
	{"policy recompute, not known, and a READ that fails", func(r *rig) {
		untold(with(goodP, `"fail"`, `"recompute"`), goodD)(r)
		r.opt[p] = func(o *local.EngineOptions) { o.Faults.FailReads = 1 }
	}, []string{"failure-policy error prefill"}, true},
	{"KV through the CPU", func(r *rig) {
		settings(with(goodP, `"kv_role"`, `"kv_buffer_device":"cpu","kv_role"`), goodD)(r)
		r.opt[p] = func(o *local.EngineOptions) { o.Faults.LoadViaCPU = true }
		f := r.with
		r.with = func(o *Options) { f(o); o.Patience = 700 * time.Millisecond }
	}, []string{"buffer-device error prefill"}, true},
	{"the flag is off on decode, not known", untold(goodP, with(goodD, "true", "false")), []string{"flag-on-decode error decode"}, false},
	{"the flag is off on decode", settings(goodP, with(goodD, "true", "false")), []string{"flag-on-decode error decode"}, false},
	{"the flag is off on prefill, not known", untold(with(goodP, "true", "false"), goodD), []string{"flag-on-prefill error prefill"}, true},
	{"the flag is off on prefill", settings(with(goodP, "true", "false"), goodD), []string{"flag-on-prefill error prefill"}, false},
	{"an engine id set by hand", untold(with(goodP, `"kv_role"`, `"engine_id":"prefill-0","kv_role"`), goodD), []string{"engine-id warning prefill"}, false},
	{"a balancer before prefill", func(r *rig) {
		var calls atomic.Int32
		r.gate[p] = func(next http.Handler) http.Handler {
			other := newRig(r.t)
			other.start()
			u, err := url.Parse(other.urls[p])
			if err != nil {
				r.t.Fatal(err)
			}
			second := httputil.NewSingleHostReverseProxy(u)
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if strings.HasSuffix(req.URL.Path, "/completions") && calls.Add(1) == 3 { // turn 3's
					second.ServeHTTP(w, req)
					return
				}
				next.ServeHTTP(w, req)
			})
		}
	}, []string{"prefix-caching error prefill", "engine-id warning prefill"}, false},
	{"a TTL below the router's margin", settings(goodP, with(goodD, "480", "25")), []string{"decode-ttl error decode"}, false},
	{"a TTL shorter than tools run", settings(goodP, with(goodD, "480", "45")), []string{"decode-ttl warning decode"}, false},
	{"the TTL on prefill", settings(with(goodP, `"kv_recompute`, `"decoder_kv_blocks_ttl":900,"kv_recompute`), with(goodD, `,"decoder_kv_blocks_ttl":480`, "")), []string{"decode-ttl warning prefill"}, false},
	{"a router that keeps handles for longer than decode", configured(RouterConfig{HandleTTL: 15 * time.Minute, Reuse: true}), []string{"router-age-limit error router"}, false},
	{"a queue longer than the lease", gates(nil, metrics(queueBuckets...)), []string{"lease error pair"}, false},
	{"localhost told to another machine", func(r *rig) {
		named(r)
		r.opt[d] = func(o *local.EngineOptions) { o.Faults.FailReads = 1 }
	}, []string{"side-channel-host error prefill"}, true},
	{"localhost told by decode to another machine", func(r *rig) {
		named(r)
		r.opt[p] = func(o *local.EngineOptions) { o.Faults.FailReads = 1 }
	}, []string{"side-channel-host error decode"}, false},
	{"localhost told by engines that share a machine under two names", named, []string{}, false},
	{"two engines at one side channel", func(r *rig) {
		r.gate[d] = answering("/v1/completions", func(body string) string {
			_, port, _ := net.SplitHostPort(r.e[p].Core.SideChannel())
			return sidePort.ReplaceAllString(body, `"remote_port":`+port)
		})
	}, []string{"side-channel-port error pair"}, true},

	{"KV events at the side channel", func(r *rig) {
		r.with = func(o *Options) {
			_, port, _ := net.SplitHostPort(r.e[p].Core.SideChannel())
			o.DecodeLog = engineLog(argsLine + `{'kv_events_config': KVEventsConfig(enable_kv_cache_events=True, publisher='zmq', endpoint='tcp://*:` + port + `')}`)
		}
	}, []string{"side-channel-port error pair"}, false},

	{"decode cannot read prefill", func(r *rig) { r.opt[d] = func(o *local.EngineOptions) { o.Faults.FailReads = 1 } }, []string{"decode-reads-prefill error decode"}, true},
	{"decode refuses what prefill takes", gates(nil, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, "/completions") {
				http.Error(w, `{"error":{"message":"no","code":400}}`, http.StatusBadRequest)
				return
			}
			next.ServeHTTP(w, req)
		})
	}), []string{"decode-reads-prefill error decode"}, true},
	{"prefill cannot read decode", func(r *rig) { r.opt[p] = func(o *local.EngineOptions) { o.Faults.FailReads = 1 } }, []string{"pull-works error prefill"}, false},
	{"prefill's requests fail", gates(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, "/completions") {
				http.Error(w, "no", http.StatusInternalServerError)
				return
			}
			next.ServeHTTP(w, req)
		})
	}, nil), []string{"probe error prefill"}, false},
	{"a TTL within prefill's own margin", settings(goodP, with(goodD, "480", "4")), []string{"decode-ttl error decode"}, false},
	{"handles expire before they can be read, not known", untold(goodP, with(goodD, "480", "4")), []string{"clock-and-expiry error pair"}, false},
	{"a gateway drops the expiry", gates(nil, answering("/v1/completions", func(b string) string { return expiry.ReplaceAllString(b, "") })), []string{"clock-and-expiry warning decode"}, false},
	{"decode's clock jumps", func(r *rig) {
		r.gate[d] = onCall(2, func() { r.e[d].Core.SetFaults(engine.Faults{ClockEpoch: time.Minute}) })
	}, []string{"clock-and-expiry error decode"}, false},
	{"handles with a block too many", gates(nil, answering("/v1/completions", func(b string) string { return blockList.ReplaceAllString(b, `"remote_block_ids":[[$1,0]]`) })), []string{"handle-shape error decode"}, false},
	{"a gateway turns integers into floats", gates(answering("/v1/completions", replace(`"remote_num_tokens":160,`, `"remote_num_tokens":160.0,`)), nil), []string{"handle-shape error prefill"}, true},
	{"streams without a handle", func(r *rig) { r.opt[d] = func(o *local.EngineOptions) { o.WireFaults.Handle = api.HandleNone } }, []string{"handle-in-streams error decode"}, true},
	{"a gateway that buffers", func(r *rig) {
		r.gate[d] = held
		r.opt[d] = func(o *local.EngineOptions) { o.Faults.StepCost = 4 * time.Millisecond }
	}, []string{"stream-bursts warning decode"}, false},
	{"blocks in the wrong order", gates(asking(func(b string) string {
		if strings.Contains(b, `"do_remote_decode":true`) {
			return rotated(b)
		}
		return b
	}), nil), []string{"answers-agree error pair"}, false},
	{
		"a gateway drops the salt", gates(asking(func(b string) string { return salt.ReplaceAllString(b, "") }), nil),
		[]string{"tenant-salt error prefill", "tenant-salt error prefill"},
		false,
	},

	{"NIXL is not installed", logged("(EngineCore) WARNING 11-29 20:58:39 [nixl_utils.py:70] NIXL is not available", ""), []string{"nixl error prefill"}, false},
	{"other backends", logged("(EngineCore) 2026-11-29 20:58:49 NIXL INFO    _api.py:405 Backend UCX was instantiated", "(EngineCore) 2026-11-29 20:58:49 NIXL INFO    _api.py:405 Backend LIBFABRIC was instantiated"), []string{"nixl error pair"}, false},
	{"some transfers have failed", gates(metrics(bump(mFailed, "", 2)), nil), []string{"transport-failures warning prefill"}, false},
	{"most transfers have failed", gates(nil, metrics(bump(mFailed, "", 50))), []string{"transport-failures error decode"}, false},
	{"KV over TCP", gates(metrics(bump(mBytes+"_sum", "", 25e9), bump(mXfer+"_sum", "", 100), bump(mBytes+"_count", "", 50), bump(mSource, "external", 1e5)), nil), []string{"transport-rate warning prefill"}, false},
	{
		"blocks of 16 tokens before a fast link", gates(metrics(bump(mBytes+"_sum", "", 5.95e9), bump(mBytes+"_count", "", 10), bump(mXfer+"_sum", "", 1.56), bump(mPost+"_sum", "", 1.42), bump(mDescriptors+"_sum", "", 181504), bump(mSource, "external", 22607)), nil),
		[]string{"transport-descriptors warning prefill"},
		false,
	},
	{
		"few large pieces before a fast link", gates(metrics(bump(mBytes+"_sum", "", 5.95e9), bump(mBytes+"_count", "", 10), bump(mXfer+"_sum", "", 0.06), bump(mPost+"_sum", "", 0.01), bump(mDescriptors+"_sum", "", 2000), bump(mSource, "external", 22607)), nil),
		[]string{},
		false,
	},
	{"an environment that forces TCP", func(r *rig) {
		r.with = func(o *Options) { o.PrefillEnv = ParseEnv([]byte("PATH=/bin\nUCX_TLS=tcp\nUCX_NET_DEVICES=eth0\n")) }
	}, []string{"transport-env warning prefill", "transport-env warning prefill"}, false},
	{"an environment that leaves RDMA on", func(r *rig) {
		r.with = func(o *Options) {
			o.PrefillEnv = ParseEnv([]byte("UCX_TLS=rc_mlx5,cuda_ipc,cuda_copy,tcp\x00UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1\x00"))
		}
	}, []string{}, false},
	{"UCX has chosen TCP", logged(laneLine, ""), []string{"transport-lanes warning prefill"}, false},
	{"RDMA that UCX does not see", func(r *rig) {
		r.with = func(o *Options) {
			o.Host = hostOf(map[string]string{"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n"}, map[string]string{"ucx_info": "#      Transport: self\n#      Transport: tcp\n"})
		}
	}, []string{"host-rdma warning host"}, false},
	{"EFA without its software", func(r *rig) {
		r.with = func(o *Options) {
			o.Host = hostOf(map[string]string{"sys/class/infiniband/rdmap0s6/ports/1/state": "4: ACTIVE\n"}, map[string]string{"fi_info": ""})
		}
	}, []string{"host-rdma warning host"}, false},

	{"handles read after their time", gates(nil, metrics(bump(mLate, "", 3))), []string{"late-readers error decode"}, false},
	{"leases that decode was too late for", gates(metrics(bump(mLate, "", 8)), nil), []string{"late-readers error prefill"}, false},
	{"a hundred percent of handles unused", gates(nil, metrics(bump(mExpired, "", 60), bump(mSuccess, `"length"`, 70))), []string{"unused-handles error pair"}, false},
	{"half of the handles unused", gates(metrics(bump(mSource, "external", 5000)), metrics(bump(mExpired, "", 60), bump(mSuccess, `"length"`, 120))), []string{"unused-handles warning pair"}, false},
	{"prompts that decode never takes over", gates(metrics(bump(mExpired, "", 90), bump(mSuccess, `"length"`, 200)), nil), []string{"unused-leases warning prefill"}, false},
	{"requests parked", gates(metrics(bump(mReason, "deferred", 2), bump(mWaiting, "", 2)), nil), []string{"hang-signs warning prefill"}, false},
	{"an idle prefill that holds a third", gates(metrics(bump(mUsage, "", 0.33)), nil), []string{"leak-signs warning prefill"}, false},
	{"log: engines that are not alike", logged("ERROR NIXL compatibility hash mismatch. Local: a, Remote: b.", ""), []string{"log-incompatible error prefill"}, false},
	{"log: another engine at the address", logged("ERROR Remote NIXL agent engine ID mismatch. Expected a, received b.", ""), []string{"log-incompatible warning prefill"}, false},
	{"log: transfers have failed", logged("", failLine), []string{"log-failures warning decode"}, false},
	{"log: late readers", logged("", "ERROR Potentially invalid KV blocks for unrecognized request cmpl-1 were retrieved by a decode worker."), []string{"log-late-readers error decode"}, false},
	{"log: many blocks ran out", logged("", strings.Repeat("WARNING Releasing expired KV blocks for request x which were retrieved by 0 remote worker(s)\n", 30)), []string{"log-expired warning decode"}, false},
	{"log: params that are not complete", logged("WARNING Got invalid KVTransferParams: x. This request will not utilize KVTransfer", ""), []string{"log-bad-params warning prefill"}, false},
	{"log: the engine has died", logged("ERROR EngineCore encountered a fatal error.", ""), []string{"log-fatal error prefill"}, false},
	{"log: a peer that is given up", logged("WARNING Local NIXL metadata for remote engine x was invalidated", ""), []string{"log-peers warning prefill"}, false},
	{"log: policy recompute", logged("WARNING Recovered from KV load failure: 1 request(s) rescheduled", ""), []string{"failure-policy error prefill"}, false},

	{"the client's address for the admin's", func(r *rig) {
		r.with = func(o *Options) { o.Router = r.urls[d] }
	}, []string{"router-reachable error router"}, false},
	{"a router with other engines", adminStub(func(*rig) string {
		return `{"engines":[{"role":"prefill","url":"http://10.0.0.1:8000","up":true,"handles":"proven"},{"role":"decode","url":"http://10.0.0.2:8000","up":true}]}`
	}, "", "[]"), []string{"router-engines warning router", "router-engines warning router"}, false},
	{"a router that distrusts prefill", adminStub(func(r *rig) string {
		return strings.Replace(goodEngines(r), "proven", "distrusted", 1)
	}, "", "[]"), []string{"router-trust error router"}, false},
	{"turns that reuse nothing", adminStub(goodEngines, "", receipts(8, "no-handle", 0, 0)), []string{"router-reuse error router"}, false},
	{"turns that reuse little", adminStub(goodEngines, "", receipts(8, "no-common-prefix", 200, 0)), []string{"router-reuse warning router"}, false},
	{"turns that reuse much", adminStub(goodEngines, "", receipts(8, "verified", 1000, 800)), []string{}, false},
	{"replies without handles", adminStub(goodEngines, "tarik_replies_without_handle_total{endpoint=\"chat\",streamed=\"true\"} 40\ntarik_handles_kept_total 0\n", "[]"), []string{"router-handles warning router"}, false},
	{"reuse turned off", configured(RouterConfig{HandleTTL: 8 * time.Minute}), []string{"reuse-on warning router"}, false},
	{"tenants without isolation", configured(RouterConfig{HandleTTL: 8 * time.Minute, Reuse: true, Authenticates: true}), []string{"tenant-isolation warning router"}, false},
}

// TestFaultMatrix breaks a pair in one way at a time. Doctor must name that, and nothing else.
func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	for _, c := range faults {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c.spoil(r)
			rep, _ := r.report()
			if diff := cmp.Diff(c.want, found(rep)); diff != "" {
				t.Errorf("findings (-want +got):\n%s\n%s", diff, text(rep))
			}
			for _, check := range rep.Checks {
				for _, f := range check.Findings {
					if f.Severity > Info && (f.Fix == "" || len(f.Evidence) == 0) {
						t.Errorf("%s: no fix or no evidence: %+v", check.ID, f)
					}
				}
			}
			for i, e := range r.e {
				s := e.Core.Snapshot()
				if clean := s.Pins == 0 && s.Blocks.Parked == 0; !clean && !c.left {
					t.Errorf("engine %d is left with %d pins, blocks %+v; doctor says %q", i, s.Pins, s.Blocks, rep.Left)
				} else if !clean && len(rep.Left) == 0 {
					t.Errorf("engine %d is left with %d pins, blocks %+v, and doctor does not say so", i, s.Pins, s.Blocks)
				}
			}
		})
	}
}

// TestMatrixCovers: every check that can find something above info has a row.
func TestMatrixCovers(t *testing.T) {
	t.Parallel()
	told := map[string]bool{
		"config-known": true, "token-details": true, "render": true, "probe-leftovers": true, // never above info
	}
	for _, c := range faults {
		for _, w := range c.want {
			told[strings.Fields(w)[0]] = true
		}
	}
	for _, id := range CheckIDs() {
		if !told[id] {
			t.Errorf("check %s has no row in the fault matrix", id)
		}
	}
}
