package bench

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseArm(t *testing.T) {
	t.Parallel()
	f := func(s string, want Arm, failure string) {
		t.Helper()
		got, err := ParseArm(s)
		if failure != "" {
			if err == nil || !strings.Contains(err.Error(), failure) {
				t.Errorf("ParseArm(%q): %v, want an error with %q", s, err, failure)
			}
			return
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("ParseArm(%q): %v (-want +got):\n%s", s, err, diff)
		}
	}
	f("on=http://a:8000", Arm{Name: "on", URL: "http://a:8000"}, "")
	f("on=https://a/base/v1/", Arm{Name: "on", URL: "https://a/base"}, "")
	f("h=pd:http://p:1,http://d:2?policy=held", Arm{Name: "h", Prefill: "http://p:1", Decode: "http://d:2", Policy: PolicyHeld}, "")
	f("h=pd:http://p:1,http://d:2?policy=none&block_size=16", Arm{Name: "h", Prefill: "http://p:1", Decode: "http://d:2", Policy: PolicyNone, BlockSize: 16}, "")
	f("h=pd:http://p:1,http://d:2?policy=none&prompt=ids", Arm{Name: "h", Prefill: "http://p:1", Decode: "http://d:2", Policy: PolicyNone, IDs: true}, "")
	f("h=pd:http://p:1,http://d:2?policy=none&prompt=text", Arm{}, "prompt=text: want messages or ids")
	f("http://a", Arm{}, "want NAME=URL")
	f("A=http://a", Arm{}, "want NAME=URL")
	f("a=router:8000", Arm{}, "want a URL")
	f("a=http://u:secret@h", Arm{}, "must not hold a password")
	f("a=http://h?x=1", Arm{}, "without ? and #")
	f("a=pd:http://p", Arm{}, "two engines")
	f("a=pd:http://p,http://d", Arm{}, `policy "": want one of`)
	f("a=pd:http://p,http://d?policy=best", Arm{}, `policy "best": want one of`)
	f("a=pd:http://p,http://d?policy=held&x=1", Arm{}, `unknown option "x"`)
	f("a=pd:http://p,http://d?policy=held&block_size=0", Arm{}, "block_size=0")
}

func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestPlanOfSettings(t *testing.T) {
	t.Parallel()
	s := DefaultSettings()
	s.Arms = []string{"on=http://a", "off=http://b"}
	s.ColdArms = []string{"on=http://a2"}
	s.Metrics = []string{"on=http://p,http://d"}
	s.Headers = []string{"on=X-Team: blue"}
	s.KeyEnv = []string{"off=KEY"}
	s.Body = []string{`on={"min_tokens":null}`}
	s.Think = []string{"0s", "exp:3s"}
	s.Concurrency, s.Rate = []int{1, 4}, []float64{0.5}
	got, err := s.Plan(env(map[string]string{"KEY": "sk-1"}))
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultPlan()
	want.Arms = []Arm{
		{Name: "on", URL: "http://a", ColdURL: "http://a2", Metrics: []string{"http://p", "http://d"}, Header: http.Header{"X-Team": {"blue"}}},
		{Name: "off", URL: "http://b", Header: http.Header{"Authorization": {"Bearer sk-1"}}},
	}
	want.Thinks = []ThinkTime{{}, {3 * time.Second, true}}
	want.Loads = []Load{{Concurrency: 1}, {Concurrency: 4}, {Rate: 0.5}}
	if string(got.Arms[0].Body["min_tokens"]) != "null" {
		t.Errorf("body %s", got.Arms[0].Body)
	}
	got.Arms[0].Body = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
}

func TestSettingsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := func(change func(s *Settings), want string) {
		t.Helper()
		s := DefaultSettings()
		s.Arms = []string{"on=http://a", "off=http://b"}
		change(&s)
		p, err := s.Plan(env(nil))
		if err == nil {
			err = p.Load(&s)
		}
		if err == nil {
			err = p.Validate()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	f(func(s *Settings) { s.Arms = []string{"x"} }, "--arm: want NAME=URL")
	f(func(s *Settings) { s.Arms[1] = "on=http://c" }, "--arm on: there are two")
	f(func(s *Settings) { s.ColdArms = []string{"up=http://c"} }, `--cold-arm: no arm is called "up"`)
	f(func(s *Settings) { s.Metrics = []string{"on=here"} }, "--metrics: ")
	f(func(s *Settings) { s.Headers = []string{"on=X"} }, "--header: want NAME=Field: value")
	f(func(s *Settings) { s.KeyEnv = []string{"on=NONE"} }, "--key-env: the variable NONE is not set")
	f(func(s *Settings) { s.Body = []string{"on=[]"} }, "--body: want NAME=JSON object")
	f(func(s *Settings) { s.Base = "up" }, "--base up: no arm")
	f(func(s *Settings) { s.Lengths = []int{10} }, "--lengths 10: want at least 64")
	f(func(s *Settings) { s.PCache = []string{"yes"} }, `--p-cache "yes"`)
	f(func(s *Settings) { s.Concurrency = []int{0} }, "--concurrency: want at least 1")
	f(func(s *Settings) { s.Rate = []float64{-1} }, "--rate: want more than 0")
	f(func(s *Settings) { s.Think = []string{"soon"} }, `--think: "soon": want a duration`)
	f(func(s *Settings) { s.Timeout = "1" }, `--timeout: "1": want a duration`)
	f(func(s *Settings) { s.Separate = "walls" }, `--separate "walls"`)
	f(func(s *Settings) { s.Repeats = 0 }, "--repeats: want at least 1")
	f(func(s *Settings) { s.Conversations = "missing" }, "--conversations: ")
	f(func(s *Settings) { s.Replay, s.Conversations = "a", "b" }, "--replay: conversations and a trace exclude each other")
	f(func(s *Settings) { s.Replay, s.Rate = "a", []float64{1} }, "--replay: the trace says when")
	f(func(s *Settings) { s.Speed = 0 }, "--speed 0")
	f(func(s *Settings) { s.Arms[0] = "on=pd:http://p,http://d?policy=none&prompt=ids" }, "--arm: prompt=ids on all arms or on none")
	f(func(s *Settings) { s.Arms = nil }, "--arm: there is none")
}

func TestRecipeErrorsNameTheLine(t *testing.T) {
	t.Parallel()
	f := func(text, want string) {
		t.Helper()
		s := DefaultSettings()
		err := s.ReadRecipe("r.yaml", []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: error %v, want %q…", text, err, want)
		}
	}
	f("turns: 3\nlenghts: [1]\n", "r.yaml:2:1: unknown field \"lenghts\"")
	f("lengths: many\n", "r.yaml:1:10: ")
	f("turns: 3\nthink: [\"0s\", soon]\n", "r.yaml:2:15: think[1]: \"soon\": want a duration")
	f("arms:\n  - on=http://a\n  - off\n", "r.yaml:3:5: arms[1]: want NAME=URL")
	f("arms:\n  - on=http://a\nmetrics:\n  - off=http://a\n", "r.yaml:4:5: metrics[0]: no arm is called")
	f("timeout: 3\n", "r.yaml:1:10: ")
}

// The recipes of the project can be read and are whole plans, with their arms or with any.
func TestRecipes(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("../../recipes/*.yaml")
	if err != nil || len(names) < 3 {
		t.Fatalf("recipes: %v %v", names, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		s := DefaultSettings()
		if err := s.ReadRecipe(name, data); err != nil {
			t.Fatal(err)
		}
		if s.Embedded() {
			s.Arms = []string{"on=http://a", "off=http://b"}
		}
		p, err := s.Plan(env(nil))
		if err == nil {
			err = p.Validate()
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Flags win over a recipe, and only those that are given.
func TestOverride(t *testing.T) {
	t.Parallel()
	s, flags := DefaultSettings(), DefaultSettings()
	if err := s.ReadRecipe("r.yaml", []byte("turns: 5\nreply: 7\np_cache: [\"off\"]\n")); err != nil {
		t.Fatal(err)
	}
	flags.Reply, flags.ColdArms = 9, []string{"x"}
	var asked []string
	s.Override(&flags, func(name string) bool {
		asked = append(asked, Flag(name))
		return name == "reply" || name == "cold_arms"
	})
	want := DefaultSettings()
	want.Turns, want.Reply, want.PCache, want.ColdArms = 5, 9, []string{"off"}, []string{"x"}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if got := strings.Join(asked, " "); !strings.Contains(got, "arm cold-arm metrics cold-metrics header key-env body") {
		t.Errorf("flags %s", got)
	}
}
