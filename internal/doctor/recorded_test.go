package doctor

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/kvp"
)

// recorded are facts of a pair of which only /metrics are known.
func recorded(t *testing.T, version, pMetrics, dMetrics string) *Facts {
	t.Helper()
	can, err := kvp.CapabilityOf(version)
	if err != nil {
		t.Fatal(err)
	}
	e := func(role, text string) *EngineFacts {
		return &EngineFacts{
			Role: role, URL: "http://" + role + ":8000", Version: version, Can: can, Before: ParseMetrics([]byte(text)),
			Models: []Model{{ID: "m", Root: "m", MaxLen: 32768}},
		}
	}
	return &Facts{Time: time.Unix(1.8e9, 0), Prefill: e(prefill, pMetrics), Decode: e(decode, dMetrics), NoProbe: "turned off by --no-probe"}
}

func result(t *testing.T, r Report, id string) Result {
	t.Helper()
	for _, c := range r.Checks {
		if c.ID == id {
			return c
		}
	}
	t.Fatalf("no check %s", id)
	return Result{}
}

// TestRecordedMetrics: from the metrics of a real pair on two H200 with NVLink and 16-token blocks alone doctor finds that
// the link is hardly used, and what to set.
func TestRecordedMetrics(t *testing.T) {
	t.Parallel()
	f := recorded(t, "0.25.1", read(t, "vllm-0.25.1/P.metrics.after.txt"), read(t, "vllm-0.25.1/D.metrics.after.txt"))
	r := NewReport(f)
	want := []string{"handle-in-streams warning decode", "transport-descriptors warning prefill", "transport-descriptors warning decode"}
	if diff := cmp.Diff(want, found(r)); diff != "" {
		t.Errorf("findings (-want +got):\n%s\n%s", diff, text(r))
	}
	const fix = `start both engines with --block-size 128: 8 times fewer pieces; or, where the release has it, "enable_cross_layers_blocks":"True" on both with VLLM_USE_V2_MODEL_RUNNER=0`
	wantFindings := []Finding{
		{
			Severity: Warning, Subject: prefill, Fix: fix,
			Text: "transfers are bound by the number of their pieces, not by the link: blocks of 16 tokens are 8.0 descriptors of 32 KiB for each token",
			Evidence: []string{
				"181504 descriptors for 22607 tokens in 10 READs",
				"91 % of 1.56 s is posting (vllm:nixl_post_time_seconds), 7.8 µs each, on the engine's own thread",
				"3.8 GB/s, 69 µs for a token",
			},
		},
		{
			Severity: Warning, Subject: decode, Fix: fix,
			Text: "transfers are bound by the number of their pieces, not by the link: blocks of 16 tokens are 8.0 descriptors of 32 KiB for each token",
			Evidence: []string{
				"233344 descriptors for 29011 tokens in 24 READs",
				"90 % of 1.82 s is posting (vllm:nixl_post_time_seconds), 7.0 µs each, on the engine's own thread",
				"4.2 GB/s, 63 µs for a token",
			},
		},
	}
	if diff := cmp.Diff(wantFindings, result(t, r, "transport-descriptors").Findings); diff != "" {
		t.Errorf("transport-descriptors (-want +got):\n%s", diff)
	}
}

// TestRecordedMisuse: a real pair over TCP, after a session in which handles were spent twice, late and not at all.
func TestRecordedMisuse(t *testing.T) {
	t.Parallel()
	r := NewReport(recorded(t, "0.33.0", read(t, "vllm-0.33.0/P.metrics.txt"), read(t, "vllm-0.33.0/D.metrics.txt")))
	want := []string{
		"transport-failures warning prefill", "transport-rate warning decode", "late-readers error prefill", "late-readers error decode",
		"unused-handles warning pair",
	}
	if diff := cmp.Diff(want, found(r)); diff != "" {
		t.Errorf("findings (-want +got):\n%s\n%s", diff, text(r))
	}
}

// TestRecordedLogs reads the logs of a real pair.
func TestRecordedLogs(t *testing.T) {
	t.Parallel()
	p, d := engineLog(read(t, "vllm-0.25.1/P.start.log")), engineLog(read(t, "vllm-0.25.1/D.start.log"))
	threshold, ttl := 64, 15.0
	for _, l := range []*LogFacts{p, d} {
		if l.Version != "0.25.1" || !l.FlagLine || !cmp.Equal(l.Threshold, &threshold) || !cmp.Equal(l.TTL, &ttl) || !l.Started || l.NoNIXL {
			t.Errorf("start: %+v", l)
		}
		if diff := cmp.Diff([]string{"UCX"}, l.Backends); diff != "" {
			t.Error(diff)
		}
		if got := []any{l.Args["block_size"], l.setting("tensor_parallel_size", "tensor_parallel_size"), l.Engine["enable_prefix_caching"], l.Engine["device_config"]}; !cmp.Equal(got, []any{16.0, 1.0, true, "cuda"}) {
			t.Errorf("settings: %v", got)
		}
		if l.KV == nil || !l.KV.Flag() || l.KV.Connector() != pullConnector || l.KV.Policy() != "fail" || l.KV.TTL() != 15 || l.KV.Written {
			t.Errorf("kv transfer config: %+v", l.KV)
		}
	}
	if got := []string{p.KV.Role(), d.KV.Role()}; !cmp.Equal(got, []string{"kv_producer", "kv_consumer"}) {
		t.Errorf("roles %v", got)
	}

	f := recorded(t, "0.25.1", read(t, "vllm-0.25.1/P.metrics.after.txt"), read(t, "vllm-0.25.1/D.metrics.after.txt"))
	f.Prefill.Log, f.Decode.Log = engineLog(read(t, "vllm-0.25.1/P.start.log")+read(t, "vllm-0.25.1/P.errors.log")), engineLog(read(t, "vllm-0.25.1/D.start.log")+read(t, "vllm-0.25.1/D.errors.log"))
	f.Prefill.KV, f.Decode.KV = f.Prefill.Log.KV, f.Decode.Log.KV
	r := NewReport(f)
	want := []string{
		"decode-ttl error decode", // 15 s, for the recording's sake
		"handle-in-streams warning decode",
		"transport-descriptors warning prefill", "transport-descriptors warning decode",
		"log-failures warning prefill", "log-failures warning prefill",
		"log-late-readers error decode",
	}
	if diff := cmp.Diff(want, found(r)); diff != "" {
		t.Errorf("findings (-want +got):\n%s\n%s", diff, text(r))
	}
	wantFailures := map[string]int{"handshake_failed": 1, "transfer_setup_failed": 1}
	if diff := cmp.Diff(wantFailures, f.Prefill.Log.Failures); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
}

// What a former life of the engine said does not count.
func TestLogBeginsAnew(t *testing.T) {
	t.Parallel()
	start := read(t, "vllm-0.25.1/P.start.log")
	l := engineLog(start + read(t, "vllm-0.25.1/P.errors.log") + start)
	if len(l.Failures) != 0 || l.Seen[sawExpired] != 0 || !l.FlagLine {
		t.Errorf("after a restart: %+v", l)
	}
}

func TestLogOfTheReferenceEngine(t *testing.T) {
	t.Parallel()
	l := engineLog(`time=2026-11-30T00:00:00Z level=INFO msg="Creating v1 connector with name: NixlPullConnector and engine_id: x"
time=2026-11-30T00:00:00Z level=INFO msg="Bidirectional KV transfer is enabled and the kv recompute threshold is set to 64 tokens.KV blocks on D are released after a TTL of 480 seconds."
time=2026-11-30T00:00:00Z level=INFO msg="Backend UCX was instantiated"
`)
	if !l.FlagLine || *l.Threshold != 64 || *l.TTL != 480 || !l.Started || !cmp.Equal(l.Backends, []string{"UCX"}) {
		t.Errorf("%+v", l)
	}
}

func TestLogLongLine(t *testing.T) {
	t.Parallel()
	l, err := ReadLog(strings.NewReader("ERROR NIXL transfer failure: handshake_failed " + strings.Repeat("x", 3*maxLogLine) + "\nWARNING " + string(sawBadParams)))
	if err != nil || l.Lines != 2 || l.Failures["handshake_failed"] != 1 || l.Seen[sawBadParams] != 1 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestUCXLog(t *testing.T) {
	t.Parallel()
	l := engineLog(`[1.2] [p:1:0] ucp_context.c:2190 UCX  INFO  UCX_* env variables: UCX_TLS=tcp,cuda_copy UCX_NET_DEVICES=eth0
[1.3] [p:1:0] ucp_worker.c:1888 UCX  INFO    ep_cfg[3]: rma(rc_mlx5/mlx5_0:1 rc_mlx5/mlx5_1:1); am(tcp/eth0)
not UCX: UCX_TLS=self rma(srd/x)
`)
	if diff := cmp.Diff(map[string]string{"UCX_TLS": "tcp,cuda_copy", "UCX_NET_DEVICES": "eth0"}, l.Env); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"rc_mlx5"}, l.Lanes); diff != "" {
		t.Error(diff)
	}
}

func TestParseMetrics(t *testing.T) {
	t.Parallel()
	m := ParseMetrics([]byte("# HELP x y\nx{a=\"1\",b=\"q\\\"u\\\\o\\nte\"} 2 1700000000\nx{a=\"2\"} 3.5\ny 7\nz{a=\"\nNaN_is{} NaN\nbad\n{} 4\n"))
	want := Metrics{
		"x": {{Labels: map[string]string{"a": "1", "b": "q\"u\\o\nte"}, Value: 2}, {Labels: map[string]string{"a": "2"}, Value: 3.5}},
		"y": {{Labels: map[string]string{}, Value: 7}},
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := []float64{m.Sum("x"), m.Sum("x", "a", "2"), m.Sum("none")}; !cmp.Equal(got, []float64{5.5, 3.5, 0}) {
		t.Errorf("sums %v", got)
	}
	p := ParseMetrics([]byte(read(t, "vllm-0.33.0/P.metrics.txt")))
	if got := []any{p.BlockSize(), p.Capacity(), p.HasNIXL(), p.Label(mCache, "enable_prefix_caching")}; !cmp.Equal(got, []any{128, 93184, true, "True"}) {
		t.Errorf("recorded: %v", got)
	}
	b, n := p.Quantile(mXfer, 0.5)
	if b != 0.025 || n != 13 {
		t.Errorf("median transfer in the bucket up to %g of %g, want 0.025 of 13", b, n)
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add([]byte("x{a=\"1\"} 2\n"))
	if b, err := os.ReadFile("testdata/vllm-0.33.0/P.metrics.txt"); err == nil {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, samples := range ParseMetrics(b) {
			if name == "" || len(samples) == 0 {
				t.Errorf("family %q with %d samples", name, len(samples))
			}
		}
	})
}

func FuzzReadLog(f *testing.F) {
	for _, name := range []string{"P.start.log", "P.errors.log"} {
		if b, err := os.ReadFile("testdata/vllm-0.25.1/" + name); err == nil {
			f.Add(string(b))
		}
	}
	f.Add("non-default args: {'a': [1, (2, None)], 'b': X(c=<E.A: 0>, d={'e': \"f\\'\"})}\nV1 LLM engine (v0.33.0) with config: a='b', c=torch.x, d={1: 2}, e")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ReadLog(strings.NewReader(s))
		if err != nil || l == nil {
			t.Errorf("%v", err)
		}
	})
}

func TestPython(t *testing.T) {
	t.Parallel()
	got := parsePyDict(`{'a': [1, (2.5, None)], 'b': X(c=<E.A: 0>, d={'e': "f\'s"}, True), 'g': torch.bfloat16, 'h': True, 'cut': ['x', 'y`)
	want := map[string]any{
		"a": []any{1.0, []any{2.5, nil}}, "b": map[string]any{"c": "<E.A: 0>", "d": map[string]any{"e": "f's"}},
		"g": "torch.bfloat16", "h": true, "cut": []any{"x"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := parsePyDict(strings.Repeat("[", 1000)); got != nil {
		t.Errorf("deep nesting: %v", got)
	}
	got = parsePyArguments(`model='/m', speculative_config=None, tensor_parallel_size=2, x=Y(z=1), compilation_config={'mode': <C.N: 0>, 'ca`)
	want = map[string]any{"model": "/m", "speculative_config": nil, "tensor_parallel_size": 2.0, "x": map[string]any{"z": 1.0}, "compilation_config": map[string]any{"mode": "<C.N: 0>"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
