package fleet

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// server is an engine's side of what the fleet asks. status answers /health.
func server(t *testing.T, version string, status *atomic.Int32) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) })
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"version":"` + version + `"}`)) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"m","root":"/models/m","max_model_len":8192}]}`))
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("# HELP vllm:cache_config_info x\nvllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"128\",cache_dtype=\"auto\",effective_attention_block_size=\"64\"} 1.0\n"))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	status.Store(http.StatusOK)
	s := server(t, "0.33.0", &status)
	e, err := New(Prefill, s.URL+"/", s.Client())
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	e.Refresh(ctx)
	got := e.Info()
	want := Info{
		Up: true, Version: "0.33.0", Can: got.Can, BlockSize: 128, Trust: Unproven,
		Models: []Model{{ID: "m", Root: "/models/m", MaxLen: 8192}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("after a refresh (-want +got):\n%s", diff)
	}
	e.SetTrust(Proven, "")

	// A busy engine misses a health check or two. It stays.
	status.Store(http.StatusServiceUnavailable)
	e.Refresh(ctx)
	e.Refresh(ctx)
	if i := e.Info(); !i.Up || i.Trust != Proven {
		t.Errorf("after two failed checks: %+v, want up and proven", i)
	}
	// Three in a row are too many, and what comes back has to prove itself again.
	e.Refresh(ctx)
	if i := e.Info(); i.Up || !strings.Contains(i.Err, "503") {
		t.Errorf("after three failed checks: %+v, want down with the reason", i)
	}
	status.Store(http.StatusOK)
	e.Refresh(ctx)
	if i := e.Info(); !i.Up || i.Trust != Unproven || i.Err != "" {
		t.Errorf("after it came back: %+v, want up and unproven", i)
	}
}

func TestSaw(t *testing.T) {
	t.Parallel()
	e, err := New(Decode, "http://127.0.0.1:1", http.DefaultClient)
	if err != nil {
		t.Fatal(err)
	}
	f := func(id, want string) {
		t.Helper()
		if got := e.Saw(id); got != want {
			t.Errorf("Saw(%q) = %q, want %q", id, got, want)
		}
	}
	f("a", "") // its first life
	f("a", "")
	f("", "") // a reply that does not say
	e.SetTrust(Proven, "")
	f("b", "a") // it has restarted
	if got := e.Info().Trust; got != Unproven {
		t.Errorf("a new life is %s, want unproven", got)
	}
}

func TestRefusesWhatIsNoPair(t *testing.T) {
	t.Parallel()
	info := func(version string, block int, model string) Info {
		return Info{Up: true, Version: version, BlockSize: block, Models: []Model{{ID: model}}}
	}
	f := func(p, d Info, want string) {
		t.Helper()
		if got := Mismatch(p, d); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("Mismatch = %q, want %q in it", got, want)
		}
	}
	good := info("0.33.0", 16, "m")
	f(good, good, "")
	f(good, info("0.32.0", 16, "m"), "same release")
	f(good, info("0.33.0", 32, "m"), "--block-size")
	f(good, info("0.33.0", 16, "n"), `model "m"`)
	f(good, Info{Err: "down"}, "") // nothing is known of it yet
}

func TestBadURL(t *testing.T) {
	t.Parallel()
	for _, u := range []string{"", "host:8000", "ftp://host", "http://"} {
		if _, err := New(Prefill, u, nil); err == nil || !strings.Contains(err.Error(), "want a URL") {
			t.Errorf("New(%q) = %v, want an error that says what to write", u, err)
		}
	}
}

func TestBlockSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`vllm:cache_config_info{block_size="16"} 1`:                                      16,
		`vllm:cache_config_info{_block_size_resolved="True",block_size="128",x="y"} 1.0`: 128,
		`vllm:cache_config_info{effective_attention_block_size="64"} 1`:                  0,
		`vllm:cache_config_info{block_size="None"} 1`:                                    0,
		``: 0,
	} {
		got, err := blockSize([]byte(text))
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("blockSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
}

// Replies count: an engine that answers turns is up however late its health checks come, and what
// its replies say of it ends with its life.
func TestWhatRepliesTell(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	status.Store(http.StatusOK)
	s := server(t, "0.33.0", &status)
	e, err := New(Decode, s.URL, s.Client())
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	e.Refresh(ctx)
	e.Saw("a")
	e.SawFingerprint([]byte(`"f"`))
	e.SawFingerprint(nil) // a reply without
	if f := e.Info().Fingerprint; f != `"f"` {
		t.Errorf("Fingerprint = %s", f)
	}
	status.Store(http.StatusServiceUnavailable)
	for range 10 {
		e.Refresh(ctx)
		e.Answered()
	}
	if !e.Info().Up {
		t.Error("an engine that answers turns counts as down")
	}
	e.Saw("b")
	if f := e.Info().Fingerprint; f != "" {
		t.Errorf("a new life has the fingerprint %s", f)
	}
	e.SawFingerprint([]byte(`"g"`))
	for range downAfter {
		e.Refresh(ctx)
	}
	if i := e.Info(); i.Up || i.Fingerprint != "" {
		t.Errorf("after %d failed checks: %+v", downAfter, i)
	}
}
