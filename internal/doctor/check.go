package doctor

import (
	"fmt"
	"slices"
)

// Severity is how bad a finding is.
type Severity int

// Severities, in order.
const (
	OK      Severity = iota // looked at, and right
	Skipped                 // could not be looked at
	Info                    // true, and good to know
	Warning                 // works, but worse than it could, or not for long
	Error                   // nothing is reused, answers are wrong, or an engine will hang
)

var severityNames = [...]string{"ok", "skipped", "info", "warning", "error"}

func (s Severity) String() string { return severityNames[s] }

// MarshalText is String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one thing that a check has found.
type Finding struct {
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"` // prefill, decode, pair, router, host
	Text     string   `json:"text"`
	Evidence []string `json:"evidence"`
	Fix      string   `json:"fix,omitempty"` // the setting or command, to be used as it stands
}

// Result is what one check says.
type Result struct {
	ID       string    `json:"id"` // lower-kebab, stable
	Group    string    `json:"group"`
	Title    string    `json:"title"`    // what is right when nothing is found
	Severity Severity  `json:"severity"` // of the worst finding; ok or skipped without one
	Note     string    `json:"note"`     // evidence of an ok, or why it was skipped
	Findings []Finding `json:"findings"`
	Docs     string    `json:"docs"`
}

// verdict collects what a check says.
type verdict struct{ r Result }

// ok says that everything is right, and how that is known.
func (v *verdict) ok(format string, args ...any) { v.r.Note = fmt.Sprintf(format, args...) }

// skip says why nothing can be said.
func (v *verdict) skip(format string, args ...any) {
	v.r.Note = fmt.Sprintf(format, args...)
	if len(v.r.Findings) == 0 {
		v.r.Severity = Skipped
	}
}

// find adds a finding. The evidence follows with because.
func (v *verdict) find(s Severity, subject, fix, format string, args ...any) *verdict {
	if len(v.r.Findings) == 0 {
		v.r.Severity = OK // a skipped side does not outweigh the other
	}
	v.r.Findings = append(v.r.Findings, Finding{Severity: s, Subject: subject, Text: fmt.Sprintf(format, args...), Fix: fix, Evidence: []string{}})
	v.r.Severity = max(v.r.Severity, s)
	return v
}

// because adds a line of evidence to the last finding.
func (v *verdict) because(format string, args ...any) *verdict {
	last := &v.r.Findings[len(v.r.Findings)-1]
	last.Evidence = append(last.Evidence, fmt.Sprintf(format, args...))
	return v
}

// check is one question about a pair. It is pure: facts in, verdict out.
type check struct {
	id, group, title string
	run              func(f *Facts, v *verdict)
	// hides lists checks that say nothing if this one has an error: what they would find follows from it.
	hides []string
}

// Groups, in the order of the report.
const (
	groupEngines   = "engines"
	groupSettings  = "settings"
	groupPath      = "path"
	groupTransport = "transport"
	groupSigns     = "signs"
	groupRouter    = "router"
)

// checks returns all of them in the order of the report. Causes stand before what they hide.
func checks() []check {
	return slices.Concat(engineChecks(), settingChecks(), pathChecks(), transportChecks(), signChecks(), routerChecks())
}

// CheckIDs are the names of all checks, in the order of the report.
func CheckIDs() []string {
	var ids []string
	for _, c := range checks() {
		ids = append(ids, c.id)
	}
	return ids
}

// docs is where a check is explained.
func docs(id string) string { return "docs/doctor.md#" + id }

// Diagnose runs all checks.
func Diagnose(f *Facts) []Result {
	var results []Result
	hidden := map[string]string{} // check → the one that explains it
	for _, c := range checks() {
		v := verdict{Result{ID: c.id, Group: c.group, Title: c.title, Docs: docs(c.id), Findings: []Finding{}}}
		if by := hidden[c.id]; by != "" {
			v.skip("follows from %s", by)
		} else {
			c.run(f, &v)
		}
		if v.r.Severity == Error {
			for _, id := range c.hides {
				if hidden[id] == "" {
					hidden[id] = c.id
				}
			}
		}
		results = append(results, v.r)
	}
	return results
}

// Worst is the severity of the worst finding.
func Worst(results []Result) Severity {
	worst := OK
	for _, r := range results {
		if r.Severity != Skipped {
			worst = max(worst, r.Severity)
		}
	}
	return worst
}

// ExitCode is the process's: 0 nothing above info, 1 warnings, 2 errors. 3, for a run that could not be made, is the
// command's own.
func ExitCode(worst Severity) int {
	switch worst {
	case Error:
		return 2
	case Warning:
		return 1
	}
	return 0
}
