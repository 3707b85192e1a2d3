package conv

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tarik-kv/tarik/internal/kvp"
)

func chainOf(scope Scope, contents ...string) []Key {
	var b strings.Builder
	b.WriteByte('[')
	for i, c := range contents {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":"user","content":%q}`, c)
	}
	b.WriteByte(']')
	return Messages(scope.Key(), []byte(b.String()))
}

// held is a Held of engine id, told apart by its number of tokens.
func held(t testing.TB, engine string, tokens int, until time.Duration) *kvp.Held {
	t.Helper()
	h, err := kvp.ParseHandle(fmt.Appendf(nil, `{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1]],"remote_engine_id":%q,`+
		`"remote_request_id":"r","remote_host":"h","remote_port":1,"tp_size":1,"remote_num_tokens":%d}`, engine, tokens))
	if err != nil {
		t.Fatal(err)
	}
	return &kvp.Held{Handle: h, Seq: make([]int32, tokens+1), Until: until}
}

func TestFindLongestKnownPrefix(t *testing.T) {
	t.Parallel()
	m := NewMemory(DefaultLimits)
	s := Scope{Model: "m"}
	first := Successor(Turn{}, "aa")
	m.Put(chainOf(s, "one"), Key{}, first, nil)
	second := Successor(first, "bb")
	m.Put(chainOf(s, "one", "two", "three"), Key{}, second, nil)

	f := func(want string, contents ...string) {
		t.Helper()
		got, _, found := m.Find(chainOf(s, contents...), Key{})
		if s := fmt.Sprint(got, " ", found); s != want {
			t.Errorf("Find(%v) = %s, want %s", contents, s, want)
		}
	}
	// The next turn repeats all and goes on.
	f("conversation=aa turn=2 true", "one", "two", "three", "four", "five")
	// The same turn again.
	f("conversation=aa turn=2 true", "one", "two", "three")
	// The history was edited behind the first message: that turn it continues.
	f("conversation=aa turn=1 true", "one", "TWO", "three", "four")
	// Another beginning is another conversation.
	f("conversation= turn=0 false", "ONE", "two", "three")
}

// Nothing of one scope is found in another: tenant, model, salt, endpoint and context all count.
func TestScopesNeverMeet(t *testing.T) {
	t.Parallel()
	scopes := []Scope{
		{},
		{Tenant: "a"},
		{Model: "a"},
		{Salt: "a"},
		{Endpoint: "a"},
		{Context: []string{"a"}},
		{Context: []string{"", "a"}},
		{Tenant: "a", Model: "a"},
		{Tenant: "aa"},
	}
	for i, from := range scopes {
		m := NewMemory(DefaultLimits)
		m.Put(chainOf(from, "x"), from.ID("1"), Successor(Turn{}, "c"), nil)
		for j, to := range scopes {
			if _, _, found := m.Find(chainOf(to, "x"), to.ID("1")); found != (i == j) {
				t.Errorf("stored under %+v, found under %+v: %v", from, to, found)
			}
		}
	}
}

func TestNameFindsWhatTheChainDoesNot(t *testing.T) {
	t.Parallel()
	m := NewMemory(DefaultLimits)
	s := Scope{Model: "m"}
	m.Put(chainOf(s, "one"), s.ID("conv-7"), Successor(Turn{}, "aa"), held(t, "d", 9, time.Hour))
	turn, h, found := m.Find(chainOf(s, "rewritten"), s.ID("conv-7"))
	if !found || h == nil || turn.Conversation != "aa" {
		t.Fatalf("Find by name = %v, %v, %v, want turn 1 of aa with its handle", turn, h, found)
	}
	if _, _, found := m.Find(chainOf(s, "rewritten"), s.ID("conv-8")); found {
		t.Error("another name finds the same conversation")
	}
}

func TestPromptChunks(t *testing.T) {
	t.Parallel()
	scope := Scope{}.Key()
	long := strings.Repeat("abcdefgh", 100) // 800 bytes: three whole chunks
	a := Prompt(scope, []byte(`"`+long+`"`))
	b := Prompt(scope, []byte(`"`+long+strings.Repeat("x", 500)+`"`))
	if len(a) != 3 || len(b) != 5 || !cmp.Equal(a, b[:3]) {
		t.Errorf("chains of 800 and 1300 bytes: %d and %d keys, want 3 and 5 with 3 in common", len(a), len(b))
	}
	ids := func(n int) []byte {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprint(i))
		}
		return []byte("[" + strings.Join(s, ", ") + "]")
	}
	if a, b := Prompt(scope, ids(130)), Prompt(scope, ids(200)); len(a) != 2 || len(b) != 3 || !cmp.Equal(a, b[:2]) {
		t.Errorf("chains of 130 and 200 ids: %d and %d keys, want 2 and 3 with 2 in common", len(a), len(b))
	}
	if got := Prompt(scope, []byte(`"short"`)); got != nil {
		t.Errorf("a short prompt has %d keys, want none", len(got))
	}
}

func TestTakeOnce(t *testing.T) {
	t.Parallel()
	m := NewMemory(DefaultLimits)
	chain := chainOf(Scope{}, "one")
	m.Put(chain, Key{}, Successor(Turn{}, "aa"), held(t, "d", 9, time.Hour))
	turn, h, _ := m.Find(chain, Key{})
	var got atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if m.Take(turn, h) {
				got.Add(1)
			}
		})
	}
	wg.Wait()
	if got.Load() != 1 {
		t.Errorf("%d of 16 takers got the handle, want 1", got.Load())
	}
	// A handle of a turn that was played again is not the one that was looked at.
	m.Put(chain, Key{}, Successor(Turn{}, "bb"), held(t, "d", 10, time.Hour))
	if m.Take(turn, h) {
		t.Error("took a handle that is not the one found")
	}
}

func TestExpireAndVoid(t *testing.T) {
	t.Parallel()
	m := NewMemory(DefaultLimits)
	for i, engine := range []string{"d1", "d1", "d2"} {
		m.Put(chainOf(Scope{}, fmt.Sprint(i)), Key{}, Successor(Turn{}, "c"), held(t, engine, 5, time.Duration(i+1)*time.Minute))
	}
	if n := m.Expire(time.Minute); n != 1 {
		t.Errorf("Expire(1m) = %d, want 1: until is the first moment too late", n)
	}
	if n := m.Void("d1"); n != 1 {
		t.Errorf("Void(d1) = %d, want 1", n)
	}
	want := Stats{Turns: 3, Held: 1, Bytes: held(t, "d2", 5, 0).Size(), Tokens: 5}
	if diff := cmp.Diff(want, m.Stats()); diff != "" {
		t.Errorf("Stats (-want +got):\n%s", diff)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	one := held(t, "d", 100, time.Hour).Size()
	m := NewMemory(Limits{Turns: 10, Bytes: 3 * one})
	lost := 0
	for i := range 1000 {
		_, gone := m.Put(chainOf(Scope{}, fmt.Sprint(i)), Scope{}.ID(fmt.Sprint(i)), Successor(Turn{}, "c"), held(t, "d", 100, time.Hour))
		lost += len(gone)
	}
	if lost != 997 {
		t.Errorf("%d handles were given back, want all but the 3 that are kept", lost)
	}
	want := Stats{Turns: 10, Held: 3, Bytes: 3 * one, Tokens: 300}
	if diff := cmp.Diff(want, m.Stats()); diff != "" {
		t.Errorf("Stats (-want +got):\n%s", diff)
	}
	if got := len(m.Shed(150)); got != 2 {
		t.Errorf("Shed(150) gave %d handles of 100 tokens back, want 2 of 3", got)
	}
	if got := len(m.Bound(99)); got != 1 {
		t.Errorf("Bound(99) gave %d handles back, want the last", got)
	}
	if len(m.byID) != 10 || m.lru.Len() != 10 {
		t.Errorf("%d names and %d list entries are kept, want 10 and 10", len(m.byID), m.lru.Len())
	}
}

// Whatever is done in whatever order, no handle is given out twice, none of another scope or past
// its time is given out as live, and the counters agree with the content.
func TestMemoryProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := NewMemory(Limits{Turns: 8, Bytes: 4000})
		taken := map[*kvp.Held]bool{}
		now := time.Duration(0)
		engines := []string{"d1", "d2"}
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				n := rapid.IntRange(1, 3).Draw(rt, "length")
				var parts []string
				for range n {
					parts = append(parts, rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "part"))
				}
				h := held(t, rapid.SampledFrom(engines).Draw(rt, "engine"), rapid.IntRange(1, 200).Draw(rt, "tokens"), now+time.Minute)
				chain := chainOf(Scope{}, parts...)
				prev, _, _ := m.Find(chain, Key{})
				_, gone := m.Put(chain, Key{}, Successor(prev, "c"), h)
				for _, h := range gone {
					if taken[h] {
						rt.Fatal("a taken handle was given back")
					}
					taken[h] = true
				}
			},
			"take": func(rt *rapid.T) {
				parts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 1, 4).Draw(rt, "parts")
				turn, h, found := m.Find(chainOf(Scope{}, parts...), Key{})
				if !found || h == nil {
					return
				}
				if m.Take(turn, h) {
					if taken[h] {
						rt.Fatal("a handle was given out twice")
					}
					taken[h] = true
				}
				if m.Take(turn, h) {
					rt.Fatal("a handle was given out twice in a row")
				}
			},
			"expire": func(rt *rapid.T) {
				now += time.Duration(rapid.IntRange(0, 90).Draw(rt, "seconds")) * time.Second
				m.Expire(now)
			},
			"void": func(rt *rapid.T) { m.Void(rapid.SampledFrom(engines).Draw(rt, "engine")) },
			"": func(rt *rapid.T) {
				var want Stats
				for _, e := range m.byKey {
					want.Turns++
					if e.held != nil {
						want.Held++
						want.Bytes += e.held.Size()
						want.Tokens += e.held.Handle.Tokens
						if taken[e.held] {
							rt.Fatal("a taken handle is still there")
						}
					}
				}
				if diff := cmp.Diff(want, m.Stats()); diff != "" {
					rt.Fatalf("counters (-content +counters):\n%s", diff)
				}
				if want.Turns > 8 || want.Bytes > 4000 {
					rt.Fatalf("over the limits: %+v", want)
				}
			},
		})
	})
}
