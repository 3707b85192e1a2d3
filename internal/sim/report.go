package sim

import (
	"fmt"
	"io"
	"strings"
)

// Report is what `tarik sim` writes: what was simulated, and the result of each policy. Its JSON names are API.
type Report struct {
	Model     string    `json:"model"`
	GPU       string    `json:"gpu"`
	GPUs      int       `json:"gpus_per_engine"`
	Layout    string    `json:"layout"`
	Link      Link      `json:"link"`
	Costs     Costs     `json:"costs"`
	KVBytes   float64   `json:"kv_bytes_per_token"`
	Pool      int       `json:"pool_tokens"`
	BlockSize int       `json:"block_size"`
	TTL       float64   `json:"ttl_seconds"`
	SLO       ReportSLO `json:"slo"`
	Workload  string    `json:"workload"`
	Seed      uint64    `json:"seed"`
	Measured  bool      `json:"costs_measured"` // else they follow from the GPU's figures
	Results   []*Result `json:"results,omitempty"`
	Plan      *Plan     `json:"plan,omitempty"`
	Bad       []BadLine `json:"lines_not_read,omitempty"`
}

// ReportSLO is an SLO in a report.
type ReportSLO struct {
	TTFTMs float64 `json:"ttft_ms"`
	ITLMs  float64 `json:"itl_ms"`
	Share  float64 `json:"share"`
}

// table is columns of text, the first one to the left, the others to the right.
type table [][]string

func (t table) write(w io.Writer) error {
	var width []int
	for _, row := range t {
		for i, cell := range row {
			if i >= len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for _, row := range t {
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-len([]rune(cell)))
			switch {
			case i == 0 && len(row) > 1:
				b.WriteString(cell + pad)
			case i == 0:
				b.WriteString(cell)
			default:
				b.WriteString("  " + pad + cell)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func number(f float64) string {
	switch {
	case f == 0:
		return "0"
	case f < 10:
		return fmt.Sprintf("%.2f", f)
	case f < 100:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

func ratio(f float64) string {
	if f == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f", f)
}

func percent(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) }

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	how := "from the GPU's figures: good for comparing, not for promises"
	if r.Measured {
		how = "measured"
	}
	head := table{
		{"model    " + fmt.Sprintf("%s, %d × %s for each engine, costs %s", r.Model, r.GPUs, r.GPU, how)},
		{"KV       " + fmt.Sprintf("%.1f KiB a token, pool of %d tokens, blocks of %d, layout %s", r.KVBytes/1024, r.Pool, r.BlockSize, r.Layout)},
		{"workload " + r.Workload},
		{"SLO      " + fmt.Sprintf("first token within %s ms, mean gap within %s ms", number(r.SLO.TTFTMs), number(r.SLO.ITLMs))},
		{""},
	}
	if err := head.write(w); err != nil {
		return err
	}
	if r.Plan != nil {
		return r.Plan.writeText(w)
	}
	t := table{
		{""},
		{"engines"},
		{"requests"},
		{"TTFT ms, p50"},
		{"  p90"},
		{"  p99"},
		{"ITL ms, p50"},
		{"  p99"},
		{"  max"},
		{"hit rate"},
		{"  of at most"},
		{"within SLO"},
		{"requests/s within SLO"},
		{"P busy"},
		{"D busy"},
		{"streams at D"},
		{"pinned at D, mean"},
		{"  GB"},
		{"KV at D / active"},
	}
	for _, x := range r.Results {
		engines := fmt.Sprintf("%dP %dD", x.Prefills, x.Decodes)
		pBusy := percent(x.PBusy)
		if x.Policy == Single {
			engines, pBusy = fmt.Sprint(x.Decodes), "-"
		}
		for i, cell := range []string{
			string(x.Policy), engines, fmt.Sprint(x.Requests), number(x.TTFT.P50), number(x.TTFT.P90), number(x.TTFT.P99), number(x.ITL.P50), number(x.ITL.P99),
			number(x.ITL.Max), percent(x.HitRate), percent(x.Repeated), percent(x.GoodShare), number(x.GoodPerSecond), pBusy, percent(x.DBusy),
			number(x.DStreams), fmt.Sprintf("%.0f", x.PinnedMean), number(x.PinnedGB), ratio(x.KVRatio),
		} {
			t[i] = append(t[i], cell)
		}
	}
	if err := t.write(w); err != nil {
		return err
	}
	for _, x := range r.Results {
		line := fmt.Sprintf("\n%s:", x.Policy)
		for _, a := range x.Arms {
			line += fmt.Sprintf(" %s %d (p50 %s ms)", a.Arm, a.Turns, number(a.TTFT.P50))
		}
		if len(x.Returns) > 0 {
			line += "; returns:"
			for _, c := range x.Returns {
				line += fmt.Sprintf(" %s", c.What)
				if c.Why != "" {
					line += " (" + c.Why + ")"
				}
				line += fmt.Sprintf(" %d,", c.Count)
			}
			line = strings.TrimSuffix(line, ",")
		}
		if x.Refused > 0 {
			line += fmt.Sprintf("; %d refused: longer than an engine's pool", x.Refused)
		}
		if _, err := fmt.Fprint(w, line); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}
