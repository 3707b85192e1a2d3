package router

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// What a prefill engine says of its prompt, in all recordings, against an independent reading.
func TestReadPrefill(t *testing.T) {
	t.Parallel()
	type reading struct {
		Engine, Fingerprint string
		Prompt, Reused      int
		Known               bool
	}
	type details struct {
		Cached *int `json:"cached_tokens"`
	}
	files, err := filepath.Glob("../../testdata/vllm-*/*/*.p.json")
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, name := range files {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var reply struct {
			Error       json.RawMessage `json:"error"`
			Fingerprint string          `json:"system_fingerprint"`
			Params      struct {
				Engine string `json:"remote_engine_id"`
				Cached *int   `json:"remote_prefill_cached_tokens"`
			} `json:"kv_transfer_params"`
			Usage struct {
				Prompt   int     `json:"prompt_tokens"`
				Input    int     `json:"input_tokens"`
				Created  int     `json:"cache_creation_input_tokens"`
				Read     *int    `json:"cache_read_input_tokens"`
				OfPrompt details `json:"prompt_tokens_details"`
				OfInput  details `json:"input_tokens_details"`
			} `json:"usage"`
		}
		if err := json.Unmarshal(body, &reply); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if reply.Error != nil {
			if _, err := readPrefill(body); err == nil {
				t.Errorf("%s: an error is read as a reply", name)
			}
			continue
		}
		want := reading{Engine: reply.Params.Engine, Fingerprint: reply.Fingerprint, Prompt: reply.Usage.Prompt + reply.Usage.Input + reply.Usage.Created}
		if reply.Usage.Read != nil {
			want.Prompt += *reply.Usage.Read
			want.Reused, want.Known = *reply.Usage.Read, true
		}
		for _, n := range []*int{reply.Usage.OfPrompt.Cached, reply.Usage.OfInput.Cached, reply.Params.Cached} {
			if n != nil {
				want.Reused, want.Known = *n, true
			}
		}
		if reply.Params.Cached != nil {
			told++
		}
		p, err := readPrefill(body)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := reading{Engine: p.engineID, Prompt: p.promptTokens}
		got.Fingerprint, _ = bodyedit.String(p.fingerprint)
		if p.cached != nil {
			got.Reused, got.Known = *p.cached, true
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if told < 20 {
		t.Errorf("%d of %d recordings say remote_prefill_cached_tokens", told, len(files))
	}
}
