package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// recorded is what the edge recordings of a real pair say.
type recorded struct {
	Choices []struct {
		PromptIDs []int32 `json:"prompt_token_ids"`
	} `json:"choices"`
	Error  *struct{ Code int } `json:"error"`
	Params json.RawMessage     `json:"kv_transfer_params"`
}

func readRecorded(t testing.TB, path string) recorded {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r recorded
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return r
}

// TestEdgeRecordings plays what was sent to a real P, with the recorded prompt lengths, and compares
// what came back: status, tokens and blocks in A, tokens not computed.
func TestEdgeRecordings(t *testing.T) {
	t.Parallel()
	// Each scenario continues a history of 640 tokens whose B holds 639, with P warm, and returns the
	// reply that was recorded.
	scenarios := map[string]func(x *pair, length int, history []int32, b []byte) reply{
		"full": func(x *pair, length int, history []int32, b []byte) reply {
			return x.p.run(extend(history, length), 1, string(b))
		},
		"plain": func(x *pair, length int, history []int32, _ []byte) reply {
			return x.p.run(extend(history, length), 1, nullForm)
		},
		"trunc": func(x *pair, length int, history []int32, b []byte) reply {
			list := parseHandle(x.t, b).Blocks[0]
			return x.p.run(extend(history, length), 1, set(x.t, b, "remote_num_tokens", 384, "remote_block_ids", [][]int{list[:3]}))
		},
		"double-1": func(x *pair, length int, history []int32, b []byte) reply {
			return x.p.run(extend(history, length), 1, string(b))
		},
		"double-2": func(x *pair, length int, history []int32, b []byte) reply {
			x.p.run(extend(history, 840), 1, string(b))
			return x.p.run(join(history, ids(91, length-640)), 1, string(b))
		},
		"short": func(x *pair, length int, history []int32, b []byte) reply {
			return x.p.run(join(history[:300], ids(92, length-300)), 1, string(b))
		},
		"expired": func(x *pair, _ int, history []int32, b []byte) reply {
			time.Sleep(481 * time.Second)
			return x.p.run(extend(history, 840), 1, string(b))
		},
		"reused": func(x *pair, length int, history []int32, b []byte) reply {
			time.Sleep(481 * time.Second)
			return x.p.run(extend(history, length), 1, set(x.t, b, "remote_blocks_expiry_time", nil))
		},
		"bad-request-id": func(x *pair, length int, history []int32, b []byte) reply {
			return x.p.run(extend(history, length), 1, set(x.t, b, "remote_request_id", "cmpl-gone"))
		},
		"unknown-engine": func(x *pair, _ int, history []int32, b []byte) reply {
			return x.p.run(extend(history, 840), 1, set(x.t, b, "remote_engine_id", "other"))
		},
		"bad-port": func(x *pair, _ int, history []int32, b []byte) reply {
			return x.p.run(extend(history, 840), 1, set(x.t, b, "remote_port", 5999))
		},
		"ahead-return": func(x *pair, length int, history []int32, b []byte) reply {
			return x.p.run(extend(history, length), 1, string(b))
		},
		"ahead-next-turn": func(x *pair, length int, history []int32, b []byte) reply {
			x.p.run(history, 1, string(b))
			return x.p.run(extend(history, length), 1, nullForm)
		},
		"ahead-recompute": func(x *pair, length int, history []int32, _ []byte) reply {
			return x.p.run(extend(history, length), 1, "")
		},
		"aheadno-next-turn": func(x *pair, length int, history []int32, _ []byte) reply {
			x.p.run(history, 1, "")
			return x.p.run(extend(history, length), 1, nullForm)
		},
	}
	files, err := filepath.Glob("testdata/edge/*/*.p.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, file := range files {
		version := filepath.Base(filepath.Dir(file))
		name := strings.TrimSuffix(filepath.Base(file), ".p.json")
		t.Run(version+"/"+name, func(t *testing.T) {
			t.Parallel()
			rec := readRecorded(t, file)
			play := scenarios[name]
			if play == nil {
				t.Fatalf("recording %s has no scenario", name)
			}
			synctest.Test(t, func(t *testing.T) {
				cp, cd := measured(), measured()
				cp.Version, cd.Version = version, version
				x := newPair(t, cp, cd)
				history, b := x.conversation(1)
				equal(t, "tokens and blocks of B", []int{parseHandle(t, b).Tokens, len(parseHandle(t, b).Blocks[0])}, []int{639, 5})
				if rec.Error != nil {
					equal(t, "finish", play(x, 0, history, b).Finish, FinishError)
					return
				}
				got := play(x, len(rec.Choices[0].PromptIDs), history, b)
				equal(t, "finish", got.Finish, FinishLength)
				if isNull(rec.Params) {
					equal(t, "params", string(got.Params), "")
					return
				}
				w, g := parseHandle(t, rec.Params), parseHandle(t, got.Params)
				type shape struct{ Tokens, Blocks, Cached int }
				equal(t, "A", shape{g.Tokens, len(g.Blocks[0]), *g.Cached}, shape{w.Tokens, len(w.Blocks[0]), *w.Cached})
			})
		})
	}
}

// extend continues history to length tokens.
func extend(history []int32, length int) []int32 { return join(history, ids(93, length-len(history))) }

// member is a key with the JSON type of its value.
type member struct{ Key, Type string }

// members lists an object's members in order.
func members(t testing.TB, raw []byte) []member {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
		t.Fatalf("params %s: %v, %v", raw, tok, err)
	}
	var out []member
	for d.More() {
		key, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
		kind := fmt.Sprintf("%T", v)
		if n, ok := v.(json.Number); ok {
			kind = "int"
			if strings.ContainsAny(n.String(), ".eE") {
				kind = "float"
			}
		}
		out = append(out, member{key.(string), kind})
	}
	return out
}

// TestParamsOnTheWire compares keys, their order and types with recordings of three versions.
func TestParamsOnTheWire(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.25.1", "0.32.0", "0.33.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cp, cd := measured(), measured()
				cp.Version, cd.Version = version, version
				x := newPair(t, cp, cd)
				p, d := x.turn(ids(94, 241), 12, nullForm)
				for leg, got := range map[string][]byte{"p": p.Params, "d": d.Params} {
					want := readRecorded(t, "testdata/wire/"+version+"/chat."+leg+".json").Params
					equal(t, leg, members(t, got), members(t, want))
				}
				equal(t, "tokens of A and B", []int{parseHandle(t, p.Params).Tokens, parseHandle(t, d.Params).Tokens}, []int{241, 252})
			})
		})
	}
}

func TestParamsPerVersion(t *testing.T) {
	t.Parallel()
	a := replyParams{prefill: true, blocks: []int{1, 2}, engineID: "e", requestID: "r&<1>", host: "::1", port: 5600, tokens: 241, generation: 1}
	b := a
	b.prefill, b.cached, b.expiry = false, -1, 3*time.Second
	for version, want := range map[release][2]string{
		21: {
			`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r&<1>","remote_host":"::1","remote_port":5600,"tp_size":1,"remote_num_tokens":241}`,
			`{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r&<1>","remote_host":"::1","remote_port":5600,"tp_size":1,"remote_num_tokens":241}`,
		},
		26: {
			`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r&<1>","remote_host":"::1","remote_port":5600,"tp_size":1,"remote_num_tokens":241,"remote_blocks_expiry_time":null}`,
			`{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r&<1>","remote_host":"::1","remote_port":5600,"tp_size":1,"remote_num_tokens":241,"remote_blocks_expiry_time":3.0}`,
		},
		28: {
			`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r&<1>","remote_host":"::1","remote_port":5600,"tp_size":1,"remote_num_tokens":241,"remote_blocks_expiry_time":null,"transfer_mode":"pull"}`,
			`{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r&<1>","remote_host":"::1","remote_port":5600,"tp_size":1,"remote_num_tokens":241,"remote_blocks_expiry_time":3.0,"transfer_mode":"pull"}`,
		},
		31: {
			`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r&<1>","remote_host":"::1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":241,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0}`,
			`{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r&<1>","remote_host":"::1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":241,"remote_blocks_expiry_time":3.0,"transfer_mode":"pull"}`,
		},
		33: {
			`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r&<1>","remote_host":"::1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":241,"remote_blocks_expiry_time":null,"remote_registration_generation":1,"transfer_mode":"pull","remote_prefill_cached_tokens":0}`,
			`{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r&<1>","remote_host":"::1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":241,"remote_blocks_expiry_time":3.0,"remote_registration_generation":1,"transfer_mode":"pull"}`,
		},
	} {
		equal(t, fmt.Sprint(version), [2]string{string(a.marshal(version)), string(b.marshal(version))}, want)
	}
}
