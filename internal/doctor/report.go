package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Report is what one run says. Its JSON is API: members may be added, none is renamed.
type Report struct {
	Schema   int          `json:"schema"` // 1
	Time     string       `json:"time"`   // RFC 3339
	Prefill  ReportEngine `json:"prefill"`
	Decode   ReportEngine `json:"decode"`
	Severity Severity     `json:"severity"` // of the worst finding: ok, info, warning, error
	Exit     int          `json:"exit"`
	Counts   Counts       `json:"counts"`
	Probe    []ReportCall `json:"probe"`    // the calls that were made, in order
	NoProbe  string       `json:"no_probe"` // why none, "" if there are
	Left     []string     `json:"left"`     // what the engines keep because of the probe
	Checks   []Result     `json:"checks"`
}

// Counts are checks by severity.
type Counts struct {
	OK      int `json:"ok"`
	Skipped int `json:"skipped"`
	Info    int `json:"info"`
	Warning int `json:"warning"`
	Error   int `json:"error"`
}

// ReportEngine is an engine in a report.
type ReportEngine struct {
	URL       string `json:"url"`
	Version   string `json:"version"`
	Model     string `json:"model"`
	BlockSize int    `json:"block_size"` // tokens
	Settings  string `json:"settings"`   // where --kv-transfer-config is known from, "" if it is not
}

// ReportCall is one call of the probe in a report. A null is a number that nobody said.
type ReportCall struct {
	Name     string  `json:"name"`
	Engine   string  `json:"engine"`
	Status   int     `json:"status"`
	Error    string  `json:"error"`
	Ms       float64 `json:"ms"`
	Prompt   int     `json:"prompt_tokens"`
	Output   int     `json:"output_tokens"`
	Cached   *int    `json:"cached_tokens"` // not computed by this engine, as its reply says
	Handle   *int    `json:"handle_tokens"` // tokens in kv_transfer_params of the reply
	Streamed bool    `json:"streamed"`
}

// NewReport diagnoses f.
func NewReport(f *Facts) Report {
	r := Report{
		Schema: 1, Time: f.Time.UTC().Format(time.RFC3339), Checks: Diagnose(f), NoProbe: f.NoProbe,
		Prefill: reportEngine(f.Prefill), Decode: reportEngine(f.Decode), Probe: []ReportCall{}, Left: []string{},
	}
	r.Severity = Worst(r.Checks)
	r.Exit = ExitCode(r.Severity)
	for _, c := range r.Checks {
		*map[Severity]*int{OK: &r.Counts.OK, Skipped: &r.Counts.Skipped, Info: &r.Counts.Info, Warning: &r.Counts.Warning, Error: &r.Counts.Error}[c.Severity]++
	}
	if p := f.Probe; p != nil {
		for _, c := range append([]*Call{p.P1, p.D1, p.P2, p.D2, p.P3, p.D3, p.Warm, p.Unsalted, p.Clean3, p.Clean2}, p.Pulls...) {
			if c != nil {
				r.Probe = append(r.Probe, reportCall(c))
			}
		}
		r.Left = append(r.Left, p.Left...)
	}
	return r
}

func reportEngine(e *EngineFacts) ReportEngine {
	out := ReportEngine{URL: e.URL, Version: e.Version, Model: e.model(), BlockSize: e.Before.BlockSize()}
	if e.KV != nil {
		out.Settings = e.KV.Source
	}
	return out
}

func reportCall(c *Call) ReportCall {
	out := ReportCall{
		Name: c.Name, Engine: c.Engine, Status: c.Status, Error: c.Err, Ms: float64(c.Took.Microseconds()) / 1e3,
		Prompt: c.Prompt, Output: c.Output, Cached: c.Cached, Streamed: c.Streamed,
	}
	if c.Handle != nil && c.Handle.Err == "" {
		out.Handle = &c.Handle.Tokens
	}
	return out
}

// WriteJSON writes the report as one indented object.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// colours of a terminal, by severity.
var colours = map[Severity]string{OK: "32", Skipped: "2", Info: "36", Warning: "33", Error: "31;1"}

// paint returns s in the colour of a severity.
func paint(coloured bool, s Severity, text string) string {
	if !coloured {
		return text
	}
	return "\x1b[" + colours[s] + "m" + text + "\x1b[0m"
}

var labels = map[Severity]string{OK: "ok", Skipped: "-", Info: "info", Warning: "WARN", Error: "ERROR"}

// WriteText writes the report for people: one line for a check that found nothing, a block for each finding. coloured is
// for terminals.
func (r Report) WriteText(w io.Writer, coloured bool) error {
	b := &strings.Builder{}
	for _, e := range []struct {
		role string
		e    ReportEngine
	}{{prefill, r.Prefill}, {decode, r.Decode}} {
		fmt.Fprintf(b, "%-8s %s", e.role, e.e.URL)
		if e.e.Version != "" {
			fmt.Fprintf(b, "   vLLM %s, model %s, blocks of %d tokens", e.e.Version, e.e.Model, e.e.BlockSize)
		}
		fmt.Fprintln(b)
	}
	group := ""
	for _, c := range r.Checks {
		if c.Group != group {
			group = c.Group
			fmt.Fprintf(b, "\n%s\n", group)
		}
		writeResult(b, c, coloured)
	}
	n := r.Counts
	fmt.Fprintf(b, "\n%s: checks with errors %d, with warnings %d, with something to know %d, ok %d, not made %d\n",
		paint(coloured, r.Severity, r.verdict()), n.Error, n.Warning, n.Info, n.OK, n.Skipped)
	_, err := io.WriteString(w, b.String())
	return err
}

// verdict is the report in a word.
func (r Report) verdict() string {
	switch r.Severity {
	case Error:
		return "broken"
	case Warning:
		return "works, with reservations"
	}
	if r.NoProbe != "" {
		return "nothing found, but the path was not tried"
	}
	return "sound"
}

// writeResult writes one check.
func writeResult(b *strings.Builder, c Result, coloured bool) {
	line := func(s Severity, text string) {
		fmt.Fprintf(b, "  %s %-22s %s\n", paint(coloured, s, fmt.Sprintf("%-5s", labels[s])), c.ID, text)
	}
	if len(c.Findings) == 0 {
		text := c.Title
		switch {
		case c.Severity == Skipped:
			text = "not checked: " + c.Note
		case c.Note != "":
			text += ": " + c.Note
		}
		line(c.Severity, text)
		return
	}
	for _, f := range c.Findings {
		line(f.Severity, f.Subject+": "+f.Text)
		for _, e := range f.Evidence {
			fmt.Fprintf(b, "          %s\n", e)
		}
		if f.Fix != "" {
			fmt.Fprintf(b, "          fix: %s\n", f.Fix)
		}
	}
	if c.Severity > Info {
		fmt.Fprintf(b, "          see  %s\n", c.Docs)
	}
}
