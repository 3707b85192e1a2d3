package analyze

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/tarik-kv/tarik/internal/chart"
)

// WriteHTML writes the report as one page that needs nothing else: charts are SVG inside it, there is no script.
func (r *Report) WriteHTML(w io.Writer) error {
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		return err
	}
	page := struct {
		R      *Report
		Text   string
		Charts []chart.Chart
	}{R: r, Text: text.String()}
	for _, build := range []func(*Report) (*chart.Chart, error){gapChart, retentionChart, pinnedChart, blockChart, lengthChart, concurrencyChart} {
		c, err := build(r)
		if err != nil {
			return fmt.Errorf("draw a chart: %w", err)
		}
		if c != nil {
			page.Charts = append(page.Charts, *c)
		}
	}
	return pageTemplate.Execute(w, page)
}

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{"percent": percent}).Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>tarik analyze</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1d2733; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.three { display: flex; gap: 1rem; flex-wrap: wrap; }
.three div { border: 1px solid #c9d2dc; border-radius: .4rem; padding: .6rem 1rem; }
.three b { display: block; font-size: 1.6rem; }
.verdict { border-left: .4rem solid #1f6f8b; padding: .2rem 1rem; background: #f2f6f8; }
figure { display: inline-block; margin: .5rem; } figcaption { font-weight: 600; }
pre { background: #f6f8fa; padding: 1rem; overflow-x: auto; font-size: 12px; }
svg { max-width: 100%; height: auto; }
</style>
</head>
<body>
<h1>tarik analyze</h1>
<div class="three">
<div><b>{{.R.FollowUpTurns}}</b>follow-up turns</div>
<div><b>{{if .R.RepeatedPromptShare}}≥ {{end}}{{percent .R.RepeatedPromptShare}}</b>repeated prompt share</div>
<div><b>{{percent .R.LateTurnsShare}}</b>later than {{.R.TTLSeconds}} s</div>
</div>
<h2>Verdict: {{.R.Verdict.Decision}}</h2>
<div class="verdict">
<p>{{.R.Verdict.Summary}}</p>
<ul>{{range .R.Verdict.Reasons}}<li>{{.}}</li>{{end}}</ul>
{{if .R.Verdict.Settings}}<ul>{{range .R.Verdict.Settings}}<li><b>{{.Name}} {{.Value}}</b>: {{.Why}}</li>{{end}}</ul>{{end}}
</div>
<h2>Charts</h2>
{{range .Charts}}<figure><figcaption>{{.Title}}</figcaption>{{.SVG}}</figure>
{{else}}<p>Nothing to draw.</p>
{{end}}
<h2>All numbers</h2>
<pre>{{.Text}}</pre>
</body>
</html>
`))

var palette = []color.Color{
	color.RGBA{0x1f, 0x6f, 0x8b, 0xff}, color.RGBA{0xd1, 0x6b, 0x2f, 0xff}, color.RGBA{0x5b, 0x8c, 0x3a, 0xff},
}

const (
	chartWidth  = 13 * vg.Centimeter
	chartHeight = 8 * vg.Centimeter
)

// drawing is a plot under construction.
type drawing struct {
	p     *plot.Plot
	lines int
	err   error
}

func newDrawing(x, y string) *drawing {
	return &drawing{p: chart.New(x, y)}
}

func (d *drawing) logX() {
	d.p.X.Scale = plot.LogScale{}
	d.p.X.Tick.Marker = plot.LogTicks{Prec: -1}
}

// line adds a line; on a logarithmic axis points at or below 0 move to least.
func (d *drawing) line(name string, points []point, least float64) {
	xy := make(plotter.XYs, 0, len(points))
	for _, p := range points {
		if !math.IsNaN(p.y) && !math.IsInf(p.y, 0) {
			xy = append(xy, plotter.XY{X: math.Max(p.x, least), Y: p.y})
		}
	}
	if len(xy) == 0 {
		return
	}
	l, err := plotter.NewLine(xy)
	if err != nil {
		d.err = err
		return
	}
	l.Color = palette[d.lines%len(palette)]
	l.Width = vg.Points(1.6)
	d.p.Add(l)
	if name != "" {
		d.p.Legend.Add(name, l)
	}
	d.lines++
}

func (d *drawing) chart(title string) (*chart.Chart, error) {
	if d.err != nil {
		return nil, d.err
	}
	if d.lines == 0 {
		return nil, nil
	}
	if d.p.X.Min == d.p.X.Max {
		d.p.X.Max = d.p.X.Min*1.1 + 1
	}
	return chart.Draw(title, d.p, chartWidth, chartHeight)
}

func gapChart(r *Report) (*chart.Chart, error) {
	d := newDrawing("seconds", "share of turns")
	d.logX()
	d.p.Y.Min, d.p.Y.Max = 0, 1
	d.line("", r.charts.gaps, 0.01)
	return d.chart("Gaps between turns, cumulative")
}

func retentionChart(r *Report) (*chart.Chart, error) {
	d := newDrawing("TTL, seconds", "share")
	d.logX()
	d.p.Y.Min, d.p.Y.Max = 0, 1
	var turns, held []point
	for _, t := range r.TTL {
		if t.TurnsInTime != nil && t.RepeatedHeld != nil {
			turns = append(turns, point{t.Seconds, *t.TurnsInTime})
			held = append(held, point{t.Seconds, *t.RepeatedHeld})
		}
	}
	d.line("turns in time", turns, 1)
	d.line("repeated held", held, 1)
	return d.chart("What a TTL holds")
}

func pinnedChart(r *Report) (*chart.Chart, error) {
	d := newDrawing("TTL, seconds", "pinned, "+r.Unit)
	d.logX()
	d.p.Y.Min = 0
	var mean, peak, inUse []point
	for _, t := range r.TTL {
		switch {
		case t.PinnedMean != nil:
			mean = append(mean, point{t.Seconds, *t.PinnedMean})
			peak = append(peak, point{t.Seconds, float64(*t.PinnedPeak)})
		case t.PinnedToInUse != nil:
			inUse = append(inUse, point{t.Seconds, *t.PinnedToInUse})
		}
	}
	if inUse != nil {
		d.p.Y.Label.Text = "pinned / in use"
	}
	d.line("mean", mean, 1)
	d.line("peak", peak, 1)
	d.line("", inUse, 1)
	return d.chart("What a TTL pins")
}

func blockChart(r *Report) (*chart.Chart, error) {
	d := newDrawing("block size, tokens", "reusable share")
	d.logX()
	d.p.Y.Min, d.p.Y.Max = 0, 1
	var list []point
	for _, b := range r.Share.Blocks {
		if b.Share != nil {
			list = append(list, point{float64(b.BlockSize), *b.Share})
		}
	}
	d.line("", list, 1)
	return d.chart("Reuse by block size")
}

func lengthChart(r *Report) (*chart.Chart, error) {
	d := newDrawing(r.Unit, "share of requests")
	d.logX()
	d.p.Y.Min, d.p.Y.Max = 0, 1
	d.line("prompt", r.charts.lengths, 1)
	d.line("not repeated, per turn", r.charts.growth, 1)
	return d.chart("Prompt lengths, cumulative")
}

func concurrencyChart(r *Report) (*chart.Chart, error) {
	d := newDrawing("seconds from the start", "at the same time")
	d.p.Y.Min = 0
	d.line("conversations", r.charts.open, math.Inf(-1))
	d.line("requests", r.charts.running, math.Inf(-1))
	return d.chart("Concurrency")
}
