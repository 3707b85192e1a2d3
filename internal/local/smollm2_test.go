package local

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSmolLM2 asks an engine with real weights over HTTP for what testdata/smollm2-greedy.json
// recorded: rendering, token ids and text must be equal. It needs the weights as a Hugging Face
// directory or a GGUF file, so it runs only where one of them is named.
func TestSmolLM2(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../testdata/smollm2-greedy.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Cases []struct {
			Messages []message
			Prompt   []int32 `json:"prompt_token_ids"`
			Tokens   []int32 `json:"token_ids"`
		}
	}
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	for _, env := range []string{"TARIK_SMOLLM2_DIR", "TARIK_SMOLLM2_GGUF"} {
		t.Run(env, func(t *testing.T) {
			t.Parallel()
			path := os.Getenv(env)
			if path == "" {
				t.Skip(env + " does not name the weights of SmolLM2-135M-Instruct")
			}
			w, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			e, err := StartEngine(w, EngineOptions{Listen: "127.0.0.1:0", Name: "m", KVTokens: 8192})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			for i, c := range recorded.Cases {
				body, err := json.Marshal(map[string]any{
					"model": "m", "messages": c.Messages, "max_tokens": len(c.Tokens), "temperature": 0, "return_token_ids": true,
				})
				if err != nil {
					t.Fatal(err)
				}
				res, err := http.Post(e.URL()+"/v1/chat/completions", "application/json", bytes.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil {
					t.Fatal(err)
				}
				var got struct {
					Prompt  []int32 `json:"prompt_token_ids"`
					Choices []struct {
						Tokens []int32 `json:"token_ids"`
					}
				}
				if err := json.Unmarshal(b, &got); err != nil || len(got.Choices) != 1 {
					t.Fatalf("case %d: reply %s", i, b)
				}
				if diff := cmp.Diff(c.Prompt, got.Prompt); diff != "" {
					t.Errorf("case %d: prompt ids (-recorded +got):\n%s", i, diff)
				}
				if diff := cmp.Diff(c.Tokens, got.Choices[0].Tokens); diff != "" {
					t.Errorf("case %d: token ids (-recorded +got):\n%s", i, diff)
				}
			}
		})
	}
}
