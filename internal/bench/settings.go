package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/tarik-kv/tarik/internal/configfile"
)

// Settings are a plan as an operator writes it: as flags, or as a recipe, a YAML file with the same names with
// underscores. Lists of "ARM=…" belong to the arm of that name.
type Settings struct {
	// Arms are NAME=URL, or NAME=pd:PREFILL,DECODE?policy=…. None: pairs of reference engines that the command starts.
	Arms        []string `yaml:"arms"`
	ColdArms    []string `yaml:"cold_arms"`    // NAME=URL of the same system with P's prefix cache off
	Metrics     []string `yaml:"metrics"`      // NAME=URL,URL of the engines behind an arm
	ColdMetrics []string `yaml:"cold_metrics"` // the same of cold arms
	Headers     []string `yaml:"headers"`      // NAME=Field: value
	KeyEnv      []string `yaml:"key_env"`      // NAME=VARIABLE with a key that is sent as Authorization: Bearer
	Body        []string `yaml:"body"`         // NAME=JSON object whose members replace those of each request
	Base        string   `yaml:"base"`         // the arm others are compared with [the last]
	ModelName   string   `yaml:"model_name"`   // [the first that is served]

	Lengths     []int     `yaml:"lengths"` // tokens
	PCache      []string  `yaml:"p_cache"`
	Concurrency []int     `yaml:"concurrency"`
	Rate        []float64 `yaml:"rate"` // conversations per second
	Think       []string  `yaml:"think"`

	Turns         int    `yaml:"turns"`
	New           int    `yaml:"new"`   // tokens
	Reply         int    `yaml:"reply"` // tokens
	Repeats       int    `yaml:"repeats"`
	Batch         int    `yaml:"batch"`
	Warmup        int    `yaml:"warmup"`
	VariableReply bool   `yaml:"variable_reply"`
	Separate      string `yaml:"separate"`
	Seed          int    `yaml:"seed"`
	Timeout       string `yaml:"timeout"`
	Settle        string `yaml:"settle"`

	Conversations string  `yaml:"conversations"` // file or directory
	Replay        string  `yaml:"replay"`        // trace file
	Speed         float64 `yaml:"speed"`
	Limit         int     `yaml:"limit"` // conversations taken from a file; 0: all
	Note          string  `yaml:"note"`
}

// DefaultSettings are DefaultPlan's.
func DefaultSettings() Settings {
	p := DefaultPlan()
	return Settings{
		PCache: p.PCache, Turns: p.Turns, New: p.New, Reply: p.Reply, Repeats: p.Repeats, Warmup: p.Warmup, Separate: string(p.Separate),
		Seed: int(p.Seed), Timeout: p.Timeout.String(), Settle: p.Settle.String(), Speed: p.Speed,
	}
}

// ReadRecipe sets what a recipe says in s. Errors name the line.
func (s *Settings) ReadRecipe(name string, data []byte) error {
	d, err := configfile.Parse(name, data)
	if err != nil {
		return err
	}
	if err := d.Decode(s); err != nil {
		return err
	}
	// The values are checked here too, so that what is wrong with them gets its line.
	if _, err := s.plan(func(path string, err error) error { return d.Fail(path, err.Error()) }, noEnvironment); err != nil {
		return err
	}
	return nil
}

// noEnvironment stands for the environment while a recipe is checked by itself.
func noEnvironment(string) (string, bool) { return "-", true }

// Override sets the members of s whose names (as in a recipe) are given to what other has.
func (s *Settings) Override(other *Settings, given func(name string) bool) {
	to, from := reflect.ValueOf(s).Elem(), reflect.ValueOf(other).Elem()
	for i := range to.NumField() {
		if given(to.Type().Field(i).Tag.Get("yaml")) {
			to.Field(i).Set(from.Field(i))
		}
	}
}

// Embedded reports whether no arms are named.
func (s *Settings) Embedded() bool { return len(s.Arms) == 0 }

// Embedded pairs run on the client's own processors with a toy model: shorter prompts, shorter thinking.
var (
	embeddedLengths = []int{512, 1024, 2048, 4096}
	embeddedThink   = ThinkTime{Mean: 200 * time.Millisecond}
)

// Plan makes the plan. Conversations and traces are not read yet: see [Plan.Load]. Errors name the flag.
func (s *Settings) Plan(lookup func(string) (string, bool)) (Plan, error) {
	return s.plan(func(path string, err error) error {
		name, _, _ := strings.Cut(path, "[")
		return fmt.Errorf("--%s: %w", flagName(name), err)
	}, lookup)
}

// flagName is the flag of a member: lists of things have theirs in the singular.
func flagName(member string) string {
	name := strings.ReplaceAll(member, "_", "-")
	switch member {
	case "arms", "cold_arms", "headers":
		name = strings.TrimSuffix(name, "s")
	}
	return name
}

// Flag is the flag that sets the member of this name.
func Flag(member string) string { return flagName(member) }

func (s *Settings) plan(fail func(path string, err error) error, lookup func(string) (string, bool)) (Plan, error) {
	p := DefaultPlan()
	if s.Embedded() {
		p.Lengths, p.Thinks = embeddedLengths, []ThinkTime{embeddedThink}
	}
	if s.Lengths != nil {
		p.Lengths = s.Lengths
	}
	p.PCache, p.Base, p.Model, p.Note = s.PCache, s.Base, s.ModelName, s.Note
	p.Turns, p.New, p.Reply, p.Repeats, p.Batch, p.Warmup = s.Turns, s.New, s.Reply, s.Repeats, s.Batch, s.Warmup
	p.FixedReply, p.Separate, p.Seed, p.Speed = !s.VariableReply, Separation(s.Separate), uint64(s.Seed), s.Speed
	for _, d := range []struct {
		name string
		from string
		to   *time.Duration
	}{{"timeout", s.Timeout, &p.Timeout}, {"settle", s.Settle, &p.Settle}} {
		v, err := time.ParseDuration(d.from)
		if err != nil {
			return p, fail(d.name, fmt.Errorf("%q: want a duration such as 30s", d.from))
		}
		*d.to = v
	}
	if s.Think != nil {
		p.Thinks = nil
	}
	for i, v := range s.Think {
		t, err := ParseThinkTime(v)
		if err != nil {
			return p, fail(fmt.Sprintf("think[%d]", i), err)
		}
		p.Thinks = append(p.Thinks, t)
	}
	if len(s.Concurrency)+len(s.Rate) > 0 {
		p.Loads = nil
	}
	for _, n := range s.Concurrency {
		p.Loads = append(p.Loads, Load{Concurrency: n})
	}
	for _, v := range s.Rate {
		p.Loads = append(p.Loads, Load{Rate: v})
	}
	switch {
	case s.Conversations != "" && s.Replay != "":
		return p, fail("replay", errors.New("conversations and a trace exclude each other"))
	case s.Replay != "" && len(s.Rate)+len(s.Concurrency) > 0:
		return p, fail("replay", errors.New("the trace says when turns start: leave concurrency and rate out"))
	case s.Limit < 0:
		return p, fail("limit", errors.New("want at least 0"))
	}
	return p, s.arms(&p, fail, lookup)
}

// arms reads the arms and what belongs to them.
func (s *Settings) arms(p *Plan, fail func(string, error) error, lookup func(string) (string, bool)) error {
	for i, v := range s.Arms {
		a, err := ParseArm(v)
		if err != nil {
			return fail(fmt.Sprintf("arms[%d]", i), err)
		}
		a.Header = http.Header{}
		p.Arms = append(p.Arms, a)
	}
	for _, list := range []struct {
		name   string
		values []string
		set    func(a *Arm, v string) error
	}{
		{"cold_arms", s.ColdArms, func(a *Arm, v string) (err error) {
			if a.PD() {
				return errors.New("a pd arm uses salts")
			}
			a.ColdURL, err = baseURL(v)
			return err
		}},
		{"metrics", s.Metrics, func(a *Arm, v string) error { return setURLs(&a.Metrics, v) }},
		{"cold_metrics", s.ColdMetrics, func(a *Arm, v string) error { return setURLs(&a.ColdMetrics, v) }},
		{"headers", s.Headers, func(a *Arm, v string) error {
			field, value, ok := strings.Cut(v, ":")
			if !ok {
				return errors.New("want NAME=Field: value")
			}
			a.Header.Set(strings.TrimSpace(field), strings.TrimSpace(value))
			return nil
		}},
		{"key_env", s.KeyEnv, func(a *Arm, v string) error {
			key, ok := lookup(v)
			if !ok || key == "" {
				return fmt.Errorf("the variable %s is not set", v)
			}
			a.Header.Set("Authorization", "Bearer "+key)
			return nil
		}},
		{"body", s.Body, func(a *Arm, v string) error {
			if err := json.Unmarshal([]byte(v), &a.Body); err != nil {
				return fmt.Errorf("want NAME=JSON object: %s", jsonError(err))
			}
			return nil
		}},
	} {
		for i, v := range list.values {
			at := fmt.Sprintf("%s[%d]", list.name, i)
			name, v, ok := strings.Cut(v, "=")
			if !ok {
				return fail(at, errors.New("want NAME=…"))
			}
			a := p.arm(name)
			if a == nil {
				return fail(at, fmt.Errorf("no arm is called %q", name))
			}
			if err := list.set(a, v); err != nil {
				return fail(at, err)
			}
		}
	}
	return nil
}

func setURLs(to *[]string, list string) error {
	for _, s := range strings.Split(list, ",") {
		u, err := baseURL(s)
		if err != nil {
			return err
		}
		*to = append(*to, u)
	}
	return nil
}
