package router_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tarik-kv/tarik/internal/telemetry"
)

// The names in a receipt are API.
func TestReceiptFields(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	h := g.post(t, chatPath, chat(true, long(100)))
	turn := h.header.Get("X-Tarik-Turn")
	var got []map[string]any
	list := do(t, http.MethodGet, g.admin+"/turns?turn="+turn, nil)
	if err := json.Unmarshal([]byte(list.body), &got); err != nil || len(got) != 1 {
		t.Fatalf("GET /turns: %v, %s", err, list.body)
	}
	want := []string{
		"arm", "conversation", "d_cached_tokens", "d_ms", "decode", "endpoint", "held_tokens", "model", "output_tokens",
		"p_computed_tokens", "p_local_tokens", "p_ms", "p_pulled_tokens", "prefill", "price", "prompt_tokens", "render_ms", "return", "status", "streamed", "time",
		"total_ms", "ttft_ms", "turn", "turn_number", "why",
	}
	if d := cmp.Diff(want, slices.Sorted(maps.Keys(got[0]))); d != "" {
		t.Errorf("members of a receipt (-want +got):\n%s", d)
	}
	for _, name := range []string{"time", "render_ms", "p_ms", "d_ms", "total_ms", "ttft_ms"} {
		delete(got[0], name)
	}
	wantValues := map[string]any{
		"turn": turn, "conversation": turn, "turn_number": 1.0, "endpoint": chatPath, "model": "m", "streamed": true,
		"arm": "recompute", "why": "first-turn", "prompt_tokens": 101.0, "output_tokens": 3.0, "p_local_tokens": 0.0, "p_pulled_tokens": 0.0,
		"p_computed_tokens": 101.0, "d_cached_tokens": nil, "status": 200.0, "prefill": g.p.URL, "decode": g.d.URL, "held_tokens": 103.0, "price": nil, "return": nil,
	}
	if d := cmp.Diff(wantValues, got[0]); d != "" {
		t.Errorf("values (-want +got):\n%s", d)
	}
	// The same as a line of the file.
	var line map[string]any
	first, _, _ := strings.Cut(g.lines.String(), "\n")
	if err := json.Unmarshal([]byte(first), &line); err != nil || line["turn"] != turn {
		t.Errorf("the line is %q, %v", first, err)
	}
	// The next turn belongs to the conversation.
	g.post(t, chatPath, chat(false, long(100), "ok", "next"))
	var both []telemetry.Receipt
	list = do(t, http.MethodGet, g.admin+"/turns?conversation="+turn, nil)
	if err := json.Unmarshal([]byte(list.body), &both); err != nil || len(both) != 2 || both[0].TurnNumber != 2 || *both[0].PPulledTokens != 7 || *both[0].PLocalTokens != 96 {
		t.Errorf("GET /turns?conversation: %v, %s", err, list.body)
	}
	for query, status := range map[string]int{"n=0": 400, "n=x": 400, "n=1": 200, "turn=none": 200} {
		if h := do(t, http.MethodGet, g.admin+"/turns?"+query, nil); h.status != status {
			t.Errorf("GET /turns?%s: HTTP %d, want %d", query, h.status, status)
		}
	}
}

// Metrics follow the conventions, and their sums are those of the turns.
func TestMetrics(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.post(t, chatPath, chat(true, long(100)))
	g.post(t, chatPath, chat(true, long(100), "ok", "next"))
	g.p.says(says(500, ""))
	g.post(t, textPath, `{"model":"m","prompt":"hi","n":2}`)
	g.post(t, textPath, `{"model":"m","prompt":"hi"}`)
	text := do(t, http.MethodGet, g.admin+"/metrics", nil).body
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	want := map[string]string{
		`tarik_turns_total{arm="recompute",endpoint="/v1/chat/completions",status="200",why="first-turn"}`: "1",
		`tarik_turns_total{arm="pull",endpoint="/v1/chat/completions",status="200",why="verified"}`:        "1",
		`tarik_turns_total{arm="plain",endpoint="/v1/completions",status="200",why="several-replies"}`:     "1",
		`tarik_turns_total{arm="recompute",endpoint="/v1/completions",status="200",why="prefill-failed"}`:  "1",
		`tarik_prompt_tokens_total{source="local"}`:                                                        "96",
		`tarik_prompt_tokens_total{source="pulled"}`:                                                       "7",
		`tarik_prompt_tokens_total{source="computed"}`:                                                     "107",
		`tarik_prompt_tokens_total{source="unknown"}`:                                                      "2",
		`tarik_handles_kept_total`:                                                                         "2",
		`tarik_handles_used_total{use="pull"}`:                                                             "1",
		`tarik_turns_in_flight`:                                                                            "0",
		`tarik_streams_truncated_total`:                                                                    "0",
		`tarik_client_params_stripped_total`:                                                               "0",
		`tarik_prefill_handles_proven{prefill="` + g.p.URL + `"}`:                                          "1",
		`tarik_ttft_seconds_count{arm="pull"}`:                                                             "1",
		`tarik_leg_seconds_count{leg="prefill"}`:                                                           "3",
	}
	got := map[string]string{}
	for name := range want {
		got[name] = g.metric(t, name)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Ready and Close leave nothing, whatever the engines do meanwhile (TestMain looks for goroutines).
func TestReadyAndClose(t *testing.T) {
	t.Parallel()
	for range 5 {
		g := newRig(t)
		g.router.Close()
		g.router.Close() // again is no harm
	}
}
