package engine

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tarik-kv/tarik/internal/refengine/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tinyEngine starts an engine with the built-in model on real sockets.
func tinyEngine(t *testing.T, kv *KVTransferConfig) *Engine {
	t.Helper()
	var emission []int32
	for id := int32(10); id < 300; id++ {
		emission = append(emission, id)
	}
	cfg := Config{KV: kv, BlockSize: 16, Blocks: 400, MaxModelLen: 4096, MaxBatchedTokens: 256, PrefixCaching: kv != nil, SideChannelHost: "127.0.0.1"}
	e, err := New(cfg, model.Tiny(1, 512, emission, []int32{511}), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.CheckAccounting(); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func runTiny(t *testing.T, e *Engine, id string, prompt []int32, maxTokens int, params string) reply {
	t.Helper()
	ch, err := e.Submit(&Request{
		ID: id, Prompt: prompt, MaxTokens: maxTokens, IgnoreEOS: true, Params: []byte(params), Logprobs: -1, PromptLogprobs: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return collect(ch)
}

// TestTinyPairOverTCP: five turns over loopback with a real forward pass. What was pulled gives the same
// tokens as what was computed, and a wrong pull does not.
func TestTinyPairOverTCP(t *testing.T) {
	t.Parallel()
	p, d, plain := tinyEngine(t, roleP()), tinyEngine(t, roleD()), tinyEngine(t, nil)
	history, params := []int32(nil), nullForm
	for turn := range 5 {
		prompt := join(history, ids(turn, 150))
		a := runTiny(t, p, fmt.Sprint("p", turn), prompt, 1, params)
		got := runTiny(t, d, fmt.Sprint("d", turn), prompt, 90, string(a.Params))
		want := runTiny(t, plain, fmt.Sprint("c", turn), prompt, 90, "")
		equal(t, "finish", got.Finish, FinishLength)
		equal(t, fmt.Sprint("reply of turn ", turn), got.ids, want.ids)
		history, params = join(prompt, got.ids), string(got.Params)
	}
	s := p.Snapshot()
	equal(t, "P's READs", s.BytesTransferred.Count, 4)
	equal(t, "P pulled", s.PromptExternal > 4*64, true)
	equal(t, "P's bytes", s.BytesTransferred.Sum > 0, true)

	// The same handle for another prompt.
	prompt := ids(99, 300)
	h := parseHandle(t, []byte(params))
	wrong := runTiny(t, p, "wrong", prompt, 30, set(t, []byte(params), "remote_num_tokens", 256, "remote_block_ids", [][]int{h.Blocks[0][:16]}))
	equal(t, "pulled", wrong.PulledTokens, 256)
	if same(wrong.ids, runTiny(t, plain, "right", prompt, 30, "").ids) {
		t.Error("a wrong pull gave the right tokens")
	}
}

// TestReadDuringSteps: a READ of finished blocks is served while the owner computes.
func TestReadDuringSteps(t *testing.T) {
	t.Parallel()
	p, d := tinyEngine(t, roleP()), tinyEngine(t, roleD())
	prompt := ids(1, 600)
	a := runTiny(t, p, "a", prompt, 1, nullForm)
	p.SetFaults(Faults{StepCost: 5 * time.Millisecond})
	busy, err := p.Submit(&Request{ID: "busy", Prompt: ids(2, 3000), MaxTokens: 200, IgnoreEOS: true, Logprobs: -1, PromptLogprobs: -1})
	if err != nil {
		t.Fatal(err)
	}
	got := runTiny(t, d, "b", prompt, 20, string(a.Params))
	equal(t, "finish", got.Finish, FinishLength)
	equal(t, "pulled", got.PulledTokens, 600)
	p.Abort("busy")
	for range busy {
	}
}
