package kvp

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// b639 is a complete handle in the form of 0.33: 639 tokens in five blocks of 128.
const b639 = `{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1,2,3,4,5]],"remote_engine_id":"e-1","remote_request_id":"cmpl-1",` +
	`"remote_host":"127.0.0.1","remote_port":5700,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":639,"remote_blocks_expiry_time":3295.833311156,` +
	`"remote_registration_generation":1,"transfer_mode":"pull"}`

// without returns raw without one member; with returns it with another value.
func without(raw, name string) string {
	doc, err := bodyedit.Scan([]byte(raw))
	if err != nil {
		panic(err)
	}
	e := doc.Edit()
	e.Delete(name)
	return string(e.Bytes())
}

func with(raw, name, value string) string {
	doc, err := bodyedit.Scan([]byte(raw))
	if err != nil {
		panic(err)
	}
	e := doc.Edit()
	e.Set(name, []byte(value))
	return string(e.Bytes())
}

func mustParse(tb testing.TB, raw string) Handle {
	tb.Helper()
	h, err := ParseHandle([]byte(raw))
	if err != nil {
		tb.Fatalf("ParseHandle(%s): %v", raw, err)
	}
	return h
}

func TestParseHandle(t *testing.T) {
	t.Parallel()
	expiry := 3295.833311156
	want := Fields{
		Blocks: [][]int{{1, 2, 3, 4, 5}}, Tokens: 639, EngineID: "e-1", RequestID: "cmpl-1", Host: "127.0.0.1", Port: 5700,
		TPSize: 1, DCPSize: 1, PPSize: 1, Expiry: &expiry, Generation: 1, TransferMode: "pull",
	}
	h := mustParse(t, b639)
	if diff := cmp.Diff(want, h.Fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if string(h.Raw()) != b639 || h.IsZero() || !(Handle{}).IsZero() {
		t.Errorf("raw = %s", h.Raw())
	}
	if got := mustParse(t, " \n"+b639+"\n"); string(got.Raw()) != b639 || !got.Equal(h) {
		t.Errorf("white space around: %s", got.Raw())
	}

	// 0.25: nine keys
	old := b639
	for _, name := range []string{"dcp_size", "pp_size", "remote_blocks_expiry_time", "remote_registration_generation", "transfer_mode"} {
		old = without(old, name)
	}
	want.Expiry, want.Generation, want.TransferMode = nil, 0, ""
	if diff := cmp.Diff(want, mustParse(t, old).Fields); diff != "" {
		t.Errorf("0.25 (-want +got):\n%s", diff)
	}
	// unknown members stay, the engine's private marks go
	odd := with(with(b639, "x_new", `{"a":[1.50,"\u2028"]}`), "_remote_blocks_processed", "true")
	if got := string(mustParse(t, odd).Raw()); got != with(b639, "x_new", `{"a":[1.50,"\u2028"]}`) {
		t.Errorf("unknown members: %s", got)
	}
	if got := mustParse(t, with(b639, "remote_blocks_expiry_time", "null")); got.Expiry != nil {
		t.Errorf("expiry = %v", *got.Expiry)
	}
	if got := mustParse(t, with(b639, "remote_prefill_cached_tokens", "17")); got.PrefillCached == nil || *got.PrefillCached != 17 {
		t.Errorf("prefill cached = %v", got.PrefillCached)
	}
	if got := mustParse(t, with(b639, "remote_prefill_cached_tokens", "null")); got.PrefillCached != nil {
		t.Errorf("prefill cached = %v", *got.PrefillCached)
	}
	if got := mustParse(t, with(b639, "remote_block_ids", "[[7,8],[],[9]]")); got.BlockCount() != 3 || len(got.Blocks) != 3 {
		t.Errorf("groups: %v", got.Blocks)
	}
	// the memory of the reply is not kept
	raw := []byte(b639)
	h = mustParse(t, string(raw))
	h2, err := ParseHandle(raw)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		raw[i] = 'x'
	}
	if !h2.Equal(h) {
		t.Error("the handle changes with the caller's buffer")
	}
}

func TestParseHandleRefuses(t *testing.T) {
	t.Parallel()
	f := func(raw, want string) {
		t.Helper()
		_, err := ParseHandle([]byte(raw))
		if err == nil || err.Error() != "parse handle: "+want {
			t.Errorf("ParseHandle(%.200s)\n got %v\nwant %s", raw, err, want)
		}
	}
	const (
		aShape    = "do_remote_prefill is true, do_remote_decode is false: params have another shape"
		bothFalse = "do_remote_prefill is false, do_remote_decode is false: params have another shape"
		bothTrue  = "do_remote_prefill is true, do_remote_decode is true: params have another shape"
	)
	f(``, "params: json at byte 0: unexpected end")
	f(`null`, "params: json at byte 0: want an object")
	f(`{}`, bothFalse)
	f(b639[:100], "params: json at byte 100: unexpected end")
	f(with(with(b639, "do_remote_prefill", "true"), "do_remote_decode", "false"), aShape)
	f(with(b639, "do_remote_prefill", "true"), bothTrue)
	f(with(b639, "do_remote_decode", "false"), bothFalse)
	f(without(b639, "do_remote_decode"), bothFalse)
	f(with(b639, "do_remote_decode", "1"), "do_remote_decode is not true or false")
	for _, name := range []string{"remote_block_ids", "remote_num_tokens", "remote_engine_id", "remote_request_id", "remote_host", "remote_port"} {
		f(without(b639, name), "params lack "+name)
	}
	// what ends an engine's process must not get that far
	f(with(b639, "remote_num_tokens", `"639"`), "remote_num_tokens is not an integer")
	f(with(b639, "remote_num_tokens", `639.0`), "remote_num_tokens is not an integer")
	f(with(b639, "remote_num_tokens", `6e2`), "remote_num_tokens is not an integer")
	f(with(b639, "remote_num_tokens", `null`), "remote_num_tokens is not an integer")
	f(with(b639, "remote_num_tokens", `0`), "remote_num_tokens is 0, want 1 to 2147483647")
	f(with(b639, "remote_num_tokens", `-1`), "remote_num_tokens is -1, want 1 to 2147483647")
	f(with(b639, "remote_num_tokens", `9223372036854775808`), "remote_num_tokens is not an integer")
	f(with(b639, "remote_port", `70000`), "remote_port is 70000, want 1 to 65535")
	f(with(b639, "remote_port", `"5700"`), "remote_port is not an integer")
	f(with(b639, "tp_size", `100000`), "tp_size is 100000, want 1 to 4096")
	f(with(b639, "tp_size", `0`), "tp_size is 0, want 1 to 4096")
	f(with(b639, "dcp_size", `1.0`), "dcp_size is not an integer")
	f(with(b639, "pp_size", `true`), "pp_size is not an integer")
	f(with(b639, "remote_registration_generation", `-1`), "remote_registration_generation is -1, want 0 to 2147483647")
	f(with(b639, "remote_prefill_cached_tokens", `1.5`), "remote_prefill_cached_tokens is not an integer")
	f(with(b639, "remote_blocks_expiry_time", `"soon"`), "remote_blocks_expiry_time is not a number")
	f(with(b639, "remote_blocks_expiry_time", `1e999`), "remote_blocks_expiry_time is not a number")
	f(with(b639, "remote_engine_id", `""`), "remote_engine_id is not a string of 1 to 1024 bytes")
	f(with(b639, "remote_engine_id", `null`), "remote_engine_id is not a string of 1 to 1024 bytes")
	f(with(b639, "remote_host", `"`+strings.Repeat("x", 1025)+`"`), "remote_host is not a string of 1 to 1024 bytes")
	f(with(b639, "remote_block_ids", `null`), "remote_block_ids is not a list")
	f(with(b639, "remote_block_ids", `[]`), "remote_block_ids is empty")
	f(with(b639, "remote_block_ids", `[[]]`), "remote_block_ids is empty")
	f(with(b639, "remote_block_ids", `[1,2]`), "remote_block_ids is not a list of lists")
	f(with(b639, "remote_block_ids", `[[1,"2"]]`), "a block id is not an integer")
	f(with(b639, "remote_block_ids", `[[1,-2]]`), "a block id is -2, want 0 to 2147483647")
	f(with(b639, "remote_block_ids", `[[1,2147483648]]`), "a block id is 2147483648, want 0 to 2147483647")
	f(with(b639, "remote_block_ids", "["+strings.Repeat("[1],", MaxGroups)+"[1]]"), "remote_block_ids has more than 64 groups")
	f(with(b639, "remote_block_ids", "[["+strings.Repeat("1,", MaxBlocks)+"1]]"), "remote_block_ids has more than 1048576 blocks")
	f(with(b639, "x", `"`+strings.Repeat("x", MaxRawBytes)+`"`), fmt.Sprintf("params of %d bytes, at most %d", len(with(b639, "x", `""`))+MaxRawBytes, MaxRawBytes))
	f(b639[:len(b639)-1]+`,"remote_num_tokens":1}`, "params name a member twice")
	f(b639[:len(b639)-1]+`,"remote\u005fport":1}`, "params name a member twice")

	if _, err := ParseHandle([]byte(with(with(b639, "do_remote_prefill", "true"), "do_remote_decode", "false"))); !errors.Is(err, ErrShape) {
		t.Errorf("an A as a handle: %v, want ErrShape", err)
	}
}

// Errors and printed forms must not tell what a handle says.
func TestHandlesAreNotPrinted(t *testing.T) {
	t.Parallel()
	secret := strings.NewReplacer("127.0.0.1", "SECRET-host", "e-1", "SECRET-engine", "cmpl-1", "SECRET-request", "1,2,3", "77777,2,3").Replace(b639)
	h := mustParse(t, secret)
	held := Held{Handle: h}
	j, err := json.Marshal(map[string]any{"h": h, "p": &h})
	if err != nil {
		t.Fatal(err)
	}
	a, err := ParsePrefilled([]byte(with(with(secret, "do_remote_prefill", "true"), "do_remote_decode", "false")))
	if err != nil {
		t.Fatal(err)
	}
	_, refused := ParseHandle([]byte(with(secret, "remote_num_tokens", `"SECRET"`)))
	_, cut := h.Cut(10_000, 128)
	printed := fmt.Sprintf("%v %+v %#v %s %v %v %s %v %+v %#v %v %v", h, h, h, h, &h, held, j, a, a, a, refused, cut)
	for _, s := range []string{"SECRET", "77777"} {
		if strings.Contains(printed, s) {
			t.Errorf("printed form tells %s: %s", s, printed)
		}
	}
	if got, want := h.String(), "639 tokens in 5 blocks"; got != want {
		t.Errorf("String = %s, want %s", got, want)
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	f := func(k, blockSize int, wantList string) {
		t.Helper()
		h := mustParse(t, b639)
		got, err := h.Cut(k, blockSize)
		if err != nil {
			t.Fatalf("Cut(%d, %d): %v", k, blockSize, err)
		}
		want := with(b639, "remote_num_tokens", fmt.Sprint(k))
		want = strings.Replace(want, "[1,2,3,4,5]", wantList, 1)
		if string(got.Raw()) != want {
			t.Errorf("Cut(%d, %d)\n got %s\nwant %s", k, blockSize, got.Raw(), want)
		}
		if diff := cmp.Diff(mustParse(t, want).Fields, got.Fields); diff != "" {
			t.Errorf("Cut(%d, %d) fields (-want +got):\n%s", k, blockSize, diff)
		}
		if !got.Consistent(blockSize) {
			t.Errorf("Cut(%d, %d) is not consistent", k, blockSize)
		}
		if string(h.Raw()) != b639 || len(h.Blocks[0]) != 5 {
			t.Errorf("Cut(%d, %d) changed its receiver", k, blockSize)
		}
	}
	// measured on a real pair: each pulls exactly k tokens and gives the right continuation
	f(384, 128, "[1,2,3]")
	f(128, 128, "[1]")
	f(300, 128, "[1,2,3]")
	f(639, 128, "[1,2,3,4,5]")
	f(638, 128, "[1,2,3,4,5]")
	f(512, 128, "[1,2,3,4]")
	f(513, 128, "[1,2,3,4,5]")
	f(1, 128, "[1]")
	// before 0.25, speculative decoding returned look-ahead blocks behind the real ones: the whole handle needs a cut
	f(639, 160, "[1,2,3,4]")
	f(100, 160, "[1]")
}

func TestCutRefuses(t *testing.T) {
	t.Parallel()
	f := func(raw string, k, blockSize int, want error, text string) {
		t.Helper()
		got, err := mustParse(t, raw).Cut(k, blockSize)
		if err == nil || want != nil && !errors.Is(err, want) || err.Error() != text || !got.IsZero() {
			t.Errorf("Cut(%d, %d) = %v, %v, want %s", k, blockSize, got, err, text)
		}
	}
	f(b639, 0, 128, nil, "cut handle of 639 tokens to 0, blocks of 128")
	f(b639, -5, 128, nil, "cut handle of 639 tokens to -5, blocks of 128")
	f(b639, 640, 128, nil, "cut handle of 639 tokens to 640, blocks of 128")
	f(b639, 384, 0, nil, "cut handle of 639 tokens to 384, blocks of 0")
	f(b639, 384, 64, ErrBlocks, "cut handle to 384 tokens: 5 blocks of 64 for 639 tokens: blocks do not cover the tokens")
	groups := with(b639, "remote_block_ids", "[[1,2,3,4,5],[4,5]]")
	f(groups, 384, 128, ErrNotCuttable, "cut handle to 384 tokens: 2 groups, dcp_size 1: blocks cannot be cut")
	dcp := with(b639, "dcp_size", "2")
	f(dcp, 384, 128, ErrNotCuttable, "cut handle to 384 tokens: 1 groups, dcp_size 2: blocks cannot be cut")
	// but whole they go
	for _, raw := range []string{groups, dcp} {
		h := mustParse(t, raw)
		if got, err := h.Cut(639, 128); err != nil || !got.Equal(h) || !h.Consistent(128) {
			t.Errorf("the whole of %s: %v, %v", raw, got, err)
		}
	}
	if mustParse(t, b639).Consistent(64) || mustParse(t, b639).Consistent(256) || !mustParse(t, b639).Consistent(128) {
		t.Error("Consistent is wrong")
	}
}

func TestClamp(t *testing.T) {
	t.Parallel()
	f := func(known, want int) {
		t.Helper()
		got, err := mustParse(t, b639).Clamp(known, 128)
		if err != nil || got.Tokens != want || !got.Consistent(128) {
			t.Errorf("Clamp(%d) = %v, %v, want %d tokens", known, got, err, want)
		}
	}
	f(640, 639)  // cut by length: D holds all but the last sampled token
	f(639, 638)  // ended by EOS under asynchronous scheduling: D counts a token that is still being computed
	f(1000, 639) // more is known than D holds
	f(600, 599)  // drafts that nobody has verified
	f(513, 512)
	if got, err := mustParse(t, b639).Clamp(1, 128); err == nil || !got.IsZero() {
		t.Errorf("Clamp(1) = %v, %v, want an error", got, err)
	}
}

func TestWithHost(t *testing.T) {
	t.Parallel()
	h := mustParse(t, b639)
	f := func(host, wantRaw, wantHost string) {
		t.Helper()
		got := h.WithHost(host)
		if want := with(b639, "remote_host", wantRaw); string(got.Raw()) != want || got.Host != wantHost {
			t.Errorf("WithHost(%s) = %s, %s", host, got.Host, got.Raw())
		}
		a, err := ParsePrefilled([]byte(aOf(b639)))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := a.WithHost(host), with(aOf(b639), "remote_host", wantRaw); string(got.Raw()) != want || got.Host != wantHost {
			t.Errorf("A: WithHost(%s) = %s, %s", host, got.Host, got.Raw())
		}
	}
	f("10.1.2.3", `"10.1.2.3"`, "10.1.2.3")
	f("[fd00::1]", `"fd00::1"`, "fd00::1") // the engine adds the brackets
	f("fd00::1", `"fd00::1"`, "fd00::1")
	f("127.0.0.1", `"127.0.0.1"`, "127.0.0.1")
}

func TestRelease(t *testing.T) {
	t.Parallel()
	h := mustParse(t, b639)
	got := h.Release()
	if want := with(b639, "remote_num_tokens", "0"); string(got.Raw()) != want || got.Tokens != 0 || got.BlockCount() != 5 {
		t.Errorf("Release = %s", got.Raw())
	}
}

// aOf is raw with the flags of an A and without expiry.
func aOf(raw string) string {
	return with(with(with(raw, "do_remote_prefill", "true"), "do_remote_decode", "false"), "remote_blocks_expiry_time", "null")
}

func TestPrefilled(t *testing.T) {
	t.Parallel()
	a, err := ParsePrefilled([]byte(aOf(b639)))
	if err != nil || a.Tokens != 639 || a.Expiry != nil || string(a.Raw()) != aOf(b639) || !a.Equal(a) {
		t.Fatalf("ParsePrefilled = %v, %v", a, err)
	}
	h := a.FlipAppend()
	if want := with(b639, "remote_blocks_expiry_time", "null"); string(h.Raw()) != want || h.Tokens != 639 {
		t.Errorf("FlipAppend = %s, want %s", h.Raw(), want)
	}
	if again := mustParse(t, string(h.Raw())); !again.Equal(h) {
		t.Error("what FlipAppend makes is no handle")
	}
	if cut, err := h.Cut(384, 128); err != nil || cut.Tokens != 384 {
		t.Errorf("cut of it = %v, %v", cut, err)
	}
	if _, err := ParsePrefilled([]byte(b639)); !errors.Is(err, ErrShape) {
		t.Errorf("a handle as an A: %v, want ErrShape", err)
	}
	if _, err := ParsePrefilled(NullForm); !errors.Is(err, ErrShape) {
		t.Errorf("the null form as an A: %v", err)
	}
}

// Every handle in the recordings parses, says what the recording says, and comes out as it went in.
func TestRecordings(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../testdata/vllm-*/*/*.json")
	if err != nil || len(files) < 80 {
		t.Fatalf("recordings: %d, %v", len(files), err)
	}
	var as, bs int
	for _, name := range files {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		raw, ok := bodyedit.Lookup(body, Member)
		if !ok || ShapeOf(raw) == ShapeNone || strings.Contains(name, "req.json") {
			continue
		}
		blockSize, version := 128, filepath.Base(filepath.Dir(filepath.Dir(name)))
		if version == "vllm-0.25.1" {
			blockSize = 16
		}
		can, err := CapabilityOf(strings.TrimPrefix(version, "vllm-"))
		if err != nil {
			t.Fatal(err)
		}
		var f Fields
		var kept []byte
		switch ShapeOf(raw) {
		case ShapePrefill:
			a, err := ParsePrefilled(raw)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			as++
			f, kept = a.Fields, a.Raw()
			if (a.PrefillCached != nil) != can.PrefillCached || a.Expiry != nil {
				t.Errorf("%s: cached %v, expiry %v, but the version says %+v", name, a.PrefillCached, a.Expiry, can)
			}
		case ShapeDecode:
			h, err := ParseHandle(raw)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			bs++
			f, kept = h.Fields, h.Raw()
			if (h.Expiry != nil) != can.ExpiryInHandle || (h.Generation > 0) != can.StreamHandle {
				t.Errorf("%s: expiry %v, generation %d, but the version says %+v", name, h.Expiry, h.Generation, can)
			}
		default:
			t.Errorf("%s: shape %d", name, ShapeOf(raw))
			continue
		}
		if string(kept) != string(raw) || !f.Consistent(blockSize) || f.TPSize != 1 || f.EngineID == "" {
			t.Errorf("%s: %v, consistent %v, kept %v", name, f, f.Consistent(blockSize), string(kept) == string(raw))
		}
		if modes := map[bool]string{true: "pull", false: ""}; f.TransferMode != modes[can.Version.Minor >= 28] {
			t.Errorf("%s: transfer mode %q", name, f.TransferMode)
		}
	}
	if as < 50 || bs < 15 {
		t.Errorf("%d prefill params and %d handles seen", as, bs)
	}
}

// Cut agrees with what the engine does: it pairs from the end of the list, so the blocks that a reader takes for
// the tokens it wants must be those that hold them.
func TestCutAgreesWithPairing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		blockSize := rapid.SampledFrom([]int{1, 16, 64, 128}).Draw(rt, "block size")
		tokens := rapid.IntRange(1, 40*blockSize).Draw(rt, "tokens")
		extra := rapid.IntRange(0, 2).Draw(rt, "look-ahead blocks")
		list := make([]int, blocksFor(tokens, blockSize)+extra)
		for i := range list {
			list[i] = 1000 + i // block 1000+i holds tokens [i*blockSize, (i+1)*blockSize)
		}
		raw := with(with(b639, "remote_num_tokens", fmt.Sprint(tokens)), "remote_block_ids", string(append(AppendIDs([]byte("["), list), ']')))
		h := mustParse(t, raw)
		k := rapid.IntRange(1, tokens).Draw(rt, "k")
		cut, err := h.Cut(k, blockSize)
		if err != nil {
			rt.Fatalf("Cut(%d): %v", k, err)
		}
		if again := mustParse(t, string(cut.Raw())); !cmp.Equal(again.Fields, cut.Fields) || !again.Equal(cut) {
			rt.Fatalf("Cut(%d): parsed again %v, want %v", k, again.Fields, cut.Fields)
		}
		local := rapid.IntRange(0, (k-1)/blockSize).Draw(rt, "local blocks") // what the reader has itself
		need := blocksFor(k, blockSize) - local
		sent := cut.Blocks[0]
		for i, id := range sent[len(sent)-need:] {
			if want := 1000 + local + i; id != want {
				rt.Fatalf("Cut(%d) of %d tokens, %d blocks local: reads block %d, want %d", k, tokens, local, id, want)
			}
		}
		// twice is once
		smaller := rapid.IntRange(1, k).Draw(rt, "smaller k")
		direct, err1 := h.Cut(smaller, blockSize)
		twice, err2 := cut.Cut(smaller, blockSize)
		if err1 != nil || err2 != nil || !direct.Equal(twice) {
			rt.Fatalf("Cut(%d) then Cut(%d) = %s, want %s", k, smaller, twice.Raw(), direct.Raw())
		}
	})
}

func FuzzParseHandle(f *testing.F) {
	f.Add([]byte(b639), 384, 128)
	f.Add([]byte(aOf(b639)), 1, 16)
	f.Add([]byte(with(b639, "remote_block_ids", "[[1,2],[3]]")), 639, 16)
	f.Add([]byte(with(b639, "_p_side_truncated", "1")), 600, 128)
	f.Add(NullForm, 1, 1)
	f.Fuzz(func(t *testing.T, raw []byte, k, blockSize int) {
		h, err := ParseHandle(raw)
		if err != nil {
			if !h.IsZero() {
				t.Fatal("an error and a handle")
			}
			if a, err := ParsePrefilled(raw); err == nil {
				if flipped, err := ParseHandle(a.FlipAppend().Raw()); err != nil || flipped.Tokens != a.Tokens {
					t.Fatalf("flipped %q: %v", raw, err)
				}
			}
			return
		}
		if h.Tokens < 1 || h.BlockCount() < 1 || h.EngineID == "" || h.Host == "" || h.Port < 1 || ShapeOf(h.Raw()) != ShapeDecode {
			t.Fatalf("%q gives %+v", raw, h.Fields)
		}
		var model map[string]json.RawMessage
		if err := json.Unmarshal(h.Raw(), &model); err != nil {
			t.Fatal(err)
		}
		for _, form := range []Handle{h.Release(), h.WithHost("x\"y"), h} {
			var got map[string]json.RawMessage
			if err := json.Unmarshal(form.Raw(), &got); err != nil || len(got) != len(model) {
				t.Fatalf("%q: form %q: %v", raw, form.Raw(), err)
			}
		}
		if blockSize > 0 && blockSize < math.MaxInt32 {
			if cut, err := h.Cut(k, blockSize); err == nil {
				again, err := ParseHandle(cut.Raw())
				if err != nil || again.Tokens != k || !cmp.Equal(again.Fields, cut.Fields) || !again.Consistent(blockSize) {
					t.Fatalf("Cut(%d, %d) of %q = %q: %v", k, blockSize, raw, cut.Raw(), err)
				}
			}
		}
	})
}
