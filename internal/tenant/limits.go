package tenant

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Limits bound what one party (a key, a tenant, or all together) uses of this router. What a field that is left
// out means is said where Limits are used. [Unlimited] lifts a limit.
type Limits struct {
	// Concurrent is the number of requests at a time, from admission to the end of the reply. More get 429,
	// or 503 if the limit is the global one. Nothing queues.
	Concurrent Count `yaml:"concurrent"`
	// RequestsPerMinute is the rate at which requests are let in, averaged over the time that Burst takes. More
	// get 429 with the Retry-After at which the next one fits, or 503 if the limit is the global one.
	RequestsPerMinute Count `yaml:"requests_per_minute"`
	// Burst is how many requests may come at once after a pause. Left out: what RequestsPerMinute allows in ten
	// seconds, at least 1. It needs RequestsPerMinute.
	Burst Count `yaml:"burst"`
	// PromptBytes is how many bytes of request bodies may be in flight at a time, which is what the router holds
	// in memory. More get 429, or 503 if the limit is the global one.
	PromptBytes Bytes `yaml:"prompt_bytes"`
	// BodyBytes is the size of one request's body, decompressed. A larger one gets 413.
	BodyBytes Bytes `yaml:"body_bytes"`
}

const (
	maxRate  = 60_000_000 // requests a minute: a microsecond each, so that whole nanoseconds are exact enough
	maxBurst = 1_000_000  // tokens, so that a bucket's filling time fits into a Duration
)

// validate reports what is wrong, each with the path of the field below path.
func (l Limits) validate(path string, complain func(path, message string)) {
	for _, f := range []struct {
		name  string
		value int64
		most  int64
	}{
		{"concurrent", int64(l.Concurrent), math.MaxInt32},
		{"requests_per_minute", int64(l.RequestsPerMinute), maxRate},
		{"burst", int64(l.Burst), maxBurst},
		{"prompt_bytes", int64(l.PromptBytes), 1 << 50},
		{"body_bytes", int64(l.BodyBytes), 1 << 40},
	} {
		if f.value < Unlimited || f.value > f.most {
			complain(path+"."+f.name, fmt.Sprintf("%d: want 1 to %d, or unlimited", f.value, f.most))
		}
	}
	if l.Burst == Unlimited {
		complain(path+".burst", "unlimited: lift requests_per_minute instead")
	}
}

// needsRate complains about a burst that has no effect, after defaults.
func (l Limits) needsRate(path string, complain func(path, message string)) {
	if l.Burst > 0 && l.RequestsPerMinute <= 0 {
		complain(path+".burst", "has no effect without requests_per_minute")
	}
}

// or returns l with d for all that is not set. A rate of its own comes with its own burst.
func (l Limits) or(d Limits) Limits {
	pick := func(own, def int64) int64 {
		if own == 0 {
			return def
		}
		return own
	}
	if l.RequestsPerMinute == 0 {
		l.Burst = Count(pick(int64(l.Burst), int64(d.Burst)))
	}
	l.RequestsPerMinute = Count(pick(int64(l.RequestsPerMinute), int64(d.RequestsPerMinute)))
	l.Concurrent = Count(pick(int64(l.Concurrent), int64(d.Concurrent)))
	l.PromptBytes = Bytes(pick(int64(l.PromptBytes), int64(d.PromptBytes)))
	l.BodyBytes = Bytes(pick(int64(l.BodyBytes), int64(d.BodyBytes)))
	return l
}

// allowance is l as admission uses it: no limit is 0.
func (l Limits) allowance() allowance {
	a := allowance{
		requests: max(int64(l.Concurrent), 0), bytes: max(int64(l.PromptBytes), 0), body: max(int64(l.BodyBytes), 0),
		minute: max(int64(l.RequestsPerMinute), 0),
	}
	if a.minute > 0 {
		a.refill = refill{every: time.Minute / time.Duration(a.minute), burst: int64(l.Burst)}
		if a.refill.burst <= 0 {
			a.refill.burst = max(a.minute/6, 1)
		}
		a.refill.burst = min(a.refill.burst, maxBurst)
	}
	return a
}

// LimitsConfig says how much all tenants together and each of them may use.
type LimitsConfig struct {
	// Global bounds all tenants together. A field that is left out has the default: 4096 concurrent requests,
	// 2 GiB of prompts in flight, 64 MiB a body, no rate. Met limits answer 503, a body too large 413.
	Global Limits `yaml:"global"`
	// Tenant bounds each tenant that Tenants does not name. A field that is left out has no limit, which leaves
	// the global ones and the fair share.
	Tenant Limits `yaml:"tenant"`
	// Tenants bounds single tenants. A field that is left out is that of Tenant.
	Tenants TenantLimits `yaml:"tenants"`
	// FairShare is the part of the global concurrent requests and prompt bytes that one tenant may hold while no
	// other is active, more than 0 and at most 1. Several busy tenants get equal parts, and some room always
	// stays for one that comes. It also bounds a tenant's rate to that part of the global rate. 1 serves first
	// come, first served. Left out: 0.8, or 1 if nobody is authenticated, because then there is one tenant.
	// A tenant beyond its share gets 429 with the reason fair-share.
	FairShare float64 `yaml:"fair_share"`
	// MaxIdleTenants is how many tenants and keys without a request in flight are remembered for the sake of
	// their rate limits. The longest idle one is forgotten first; it finds its full burst when it comes back.
	// Left out: 100000, at some 300 bytes each.
	MaxIdleTenants int `yaml:"max_idle_tenants"`
}

// TenantLimits are limits by tenant.
type TenantLimits map[string]Limits

// UnmarshalYAML refuses names that YAML reads as something else than a string: 0123 would become the tenant "83",
// and the limits would be nobody's.
func (l *TenantLimits) UnmarshalYAML(n ast.Node) error {
	if m, ok := n.(ast.MapNode); ok {
		for pairs := m.MapRange(); pairs.Next(); {
			if key := pairs.Key(); key.Type() != ast.StringType {
				return errorAt(key, fmt.Sprintf("want a tenant's name, got %s: put it in quotes", strings.ToLower(key.Type().String())))
			}
		}
	}
	return yaml.NodeToValue(n, (*map[string]Limits)(l), yaml.Strict())
}

var defaultGlobal = Limits{Concurrent: 4096, PromptBytes: 2 << 30, BodyBytes: 64 << 20}

const (
	defaultFairShare      = 0.8
	defaultMaxIdleTenants = 100_000
)

// withDefaults fills in what is left out. lone says that there is one tenant only.
func (c LimitsConfig) withDefaults(lone bool) LimitsConfig {
	c.Global = c.Global.or(defaultGlobal)
	if c.FairShare == 0 {
		c.FairShare = defaultFairShare
		if lone {
			c.FairShare = 1
		}
	}
	if c.MaxIdleTenants == 0 {
		c.MaxIdleTenants = defaultMaxIdleTenants
	}
	return c
}

func (c LimitsConfig) validate(path string, complain func(path, message string)) {
	c.Global.validate(path+".global", complain)
	c.Global.or(defaultGlobal).needsRate(path+".global", complain)
	c.Tenant.validate(path+".tenant", complain)
	c.Tenant.needsRate(path+".tenant", complain)
	for name, l := range sorted(c.Tenants) {
		at := path + ".tenants." + name
		if err := checkTenant(name); err != nil && name != "" {
			complain(at, err.Error())
		}
		l.validate(at, complain)
		l.or(c.Tenant).needsRate(at, complain)
	}
	if !(c.FairShare >= 0 && c.FairShare <= 1) { // NaN is neither
		complain(path+".fair_share", fmt.Sprintf("%v: want more than 0 and at most 1", c.FairShare))
	}
	if c.MaxIdleTenants < 0 {
		complain(path+".max_idle_tenants", fmt.Sprintf("%d: want at least 1", c.MaxIdleTenants))
	}
}

// tenant is what the tenant of that name may use.
func (c LimitsConfig) tenant(name string) allowance {
	l, ok := c.Tenants[name]
	if ok {
		l = l.or(c.Tenant)
	} else {
		l = c.Tenant
	}
	if c.Global.RequestsPerMinute > 0 && c.FairShare < 1 {
		share := max(Count(float64(c.Global.RequestsPerMinute)*c.FairShare), 1)
		if l.RequestsPerMinute <= 0 || l.RequestsPerMinute > share {
			l.RequestsPerMinute = share
			if l.Burst <= 0 && c.Global.Burst > 0 {
				l.Burst = max(Count(float64(c.Global.Burst)*c.FairShare), 1)
			}
		}
	}
	return l.allowance()
}
