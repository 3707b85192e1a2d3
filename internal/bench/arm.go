package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Policy is what a pd arm does between P and D for turns after the first.
type Policy string

// The policies. TTFT is the P call plus the D call until its first content, except for append, which has no P call.
const (
	PolicyNone   Policy = "none"   // the null form: P has what its own prefix cache has
	PolicyHeld   Policy = "held"   // D's handle is kept and given to P with the next turn
	PolicyReturn Policy = "return" // after each turn P is given the handle and what the next prompt begins with
	PolicyOracle Policy = "oracle" // P has computed the whole history itself, in time that is not counted
	PolicyAppend Policy = "append" // D alone, from its own prefix cache
)

// Policies are all of them.
var Policies = []Policy{PolicyNone, PolicyHeld, PolicyReturn, PolicyOracle, PolicyAppend}

// Arm is one of the things compared: an OpenAI-compatible endpoint, or an engine pair played by hand.
type Arm struct {
	Name string `json:"name"`

	// URL is the base of an OpenAI-compatible endpoint, without /v1. Empty for a pd arm.
	URL string `json:"url,omitempty"`
	// ColdURL is the same system with P's prefix cache off, for cells that want that. Empty: a fresh cache_salt each
	// turn stands for it.
	ColdURL string `json:"cold_url,omitempty"`

	// Prefill and Decode are the engines of a pd arm.
	Prefill string `json:"prefill,omitempty"`
	Decode  string `json:"decode,omitempty"`
	Policy  Policy `json:"policy,omitempty"`
	// IDs makes an arm speak in token ids, by completions: the next prompt is the last one, the ids of its reply, and
	// the new text. For engines whose text does not come back as the ids it was made of: dummy weights.
	IDs bool `json:"ids,omitempty"`
	// BlockSize is of D's KV cache, in tokens; 0: what its /metrics says.
	BlockSize int `json:"block_size,omitempty"`

	// Metrics are base URLs or /metrics URLs of the engines behind the arm; ColdMetrics those behind ColdURL. A pd arm
	// has its engines here if nothing else is given.
	Metrics     []string `json:"metrics,omitempty"`
	ColdMetrics []string `json:"cold_metrics,omitempty"`

	// Header is sent with every request of the arm; Body members replace those of the request. Neither is written to
	// journals or reports: they may hold keys.
	Header http.Header                `json:"-"`
	Body   map[string]json.RawMessage `json:"-"`
}

// PD reports whether the arm plays the router itself.
func (a *Arm) PD() bool { return a.Prefill != "" }

// engines are the metrics URLs for a cell.
func (a *Arm) engines(cold bool) []string {
	switch {
	case cold && a.ColdURL != "":
		return a.ColdMetrics
	case len(a.Metrics) > 0 || !a.PD():
		return a.Metrics
	}
	return []string{a.Prefill, a.Decode}
}

// String says what the arm is.
func (a *Arm) String() string {
	if a.PD() {
		s := fmt.Sprintf("P %s and D %s, played by hand, policy %s", a.Prefill, a.Decode, a.Policy)
		if a.IDs {
			s += ", prompts as token ids"
		}
		return s
	}
	if a.ColdURL != "" && a.ColdURL != a.URL {
		return fmt.Sprintf("%s, and %s for P's prefix cache off", a.URL, a.ColdURL)
	}
	if a.IDs {
		return a.URL + ", prompts as token ids"
	}
	return a.URL
}

var armName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,31}$`)

// ParseArm reads NAME=URL, NAME=URL?prompt=ids or NAME=pd:P,D?policy=held&block_size=16.
func ParseArm(s string) (Arm, error) {
	name, target, ok := strings.Cut(s, "=")
	if !ok || !armName.MatchString(name) {
		return Arm{}, errors.New("want NAME=URL or NAME=pd:PREFILL,DECODE?policy=…, the name of lower-case letters, digits and . _ -")
	}
	a := Arm{Name: name}
	rest, pd := strings.CutPrefix(target, "pd:")
	if !pd {
		var err error
		target, a.IDs = strings.CutSuffix(target, "?prompt=ids")
		a.URL, err = baseURL(target)
		return a, err
	}
	engines, query, _ := strings.Cut(rest, "?")
	p, d, ok := strings.Cut(engines, ",")
	if !ok {
		return Arm{}, fmt.Errorf("%q: want two engines, pd:PREFILL,DECODE", target)
	}
	var err error
	if a.Prefill, err = baseURL(p); err != nil {
		return Arm{}, err
	}
	if a.Decode, err = baseURL(d); err != nil {
		return Arm{}, err
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return Arm{}, fmt.Errorf("%q: %w", query, err)
	}
	for key, v := range values {
		switch key {
		case "policy":
			a.Policy = Policy(v[len(v)-1])
		case "prompt":
			if a.IDs = v[len(v)-1] == "ids"; !a.IDs && v[len(v)-1] != "messages" {
				return Arm{}, fmt.Errorf("prompt=%s: want messages or ids", v[len(v)-1])
			}
		case "block_size":
			if a.BlockSize, err = strconv.Atoi(v[len(v)-1]); err != nil || a.BlockSize < 1 {
				return Arm{}, fmt.Errorf("block_size=%s: want a number of tokens", v[len(v)-1])
			}
		default:
			return Arm{}, fmt.Errorf("unknown option %q of a pd arm; there are policy, prompt and block_size", key)
		}
	}
	if !slices.Contains(Policies, a.Policy) {
		return Arm{}, fmt.Errorf("policy %q: want one of %v", a.Policy, Policies)
	}
	return a, nil
}

// baseURL checks a base URL and takes a trailing slash or /v1 off.
func baseURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("%q: want a URL such as http://router:8000", s)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q: want a base URL without ? and #", s)
	}
	if u.User != nil {
		return "", errors.New("a URL must not hold a password; use a header")
	}
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimRight(s, "/"), "/v1"), "/"), nil
}

// metricsURL is where an engine's metrics are.
func metricsURL(engine string) string {
	if strings.HasSuffix(engine, "/metrics") {
		return engine
	}
	return strings.TrimRight(engine, "/") + "/metrics"
}
