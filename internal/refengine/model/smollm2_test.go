package model

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The recording holds greedy continuations of SmolLM2-135M-Instruct by another implementation, in float32.
const recordingFile = "../../../testdata/smollm2-greedy.json"

type recording struct {
	Cases []struct {
		Prompt      []int32      `json:"prompt_token_ids"`
		Tokens      []int32      `json:"token_ids"`
		FirstLogits [][2]float64 `json:"first_logits"` // the five largest: id, value
	} `json:"cases"`
}

// TestSmolLM2 compares a real checkpoint's greedy output with the recording, token for token.
//
// TARIK_SMOLLM2_DIR names a Hugging Face directory with the weights in bfloat16, TARIK_SMOLLM2_GGUF the Q4_1 file
// that they come from.
func TestSmolLM2(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(recordingFile)
	if err != nil {
		t.Fatal(err)
	}
	var rec recording
	if err := json.Unmarshal(raw, &rec); err != nil {
		t.Fatal(err)
	}
	f := func(env string, load func(string) (*Model, error)) {
		t.Run(env, func(t *testing.T) {
			path := os.Getenv(env)
			if path == "" {
				t.Skipf("%s is not set: no checkpoint to compare with %s", env, recordingFile)
			}
			m, err := load(path)
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range rec.Cases {
				t.Run(fmt.Sprint(i), func(t *testing.T) {
					p := m.NewPool((len(c.Prompt)+len(c.Tokens))/16+1, 16)
					logits := m.Forward(p, []Chunk{{Tokens: c.Prompt, Blocks: table(p.Blocks()), Logits: 1}})[0]
					for _, want := range c.FirstLogits {
						if got := logits[int(want[0])]; math.Abs(float64(got)-want[1]) > 1e-3 {
							t.Errorf("logit of token %v = %v, want %v", want[0], got, want[1])
						}
					}
					got := gen(m, p, c.Prompt, len(c.Tokens))
					if diff := cmp.Diff(c.Tokens, got); diff != "" {
						t.Errorf("greedy tokens (-want +got):\n%s", diff)
					}
				})
			}
		})
	}
	f("TARIK_SMOLLM2_DIR", LoadDir)
	f("TARIK_SMOLLM2_GGUF", LoadGGUF)
}
