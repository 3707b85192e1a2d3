package bench

import (
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tarik-kv/tarik/internal/chart"
)

// WriteHTML writes the report as one page that needs nothing else: charts are SVG inside it, there is no script.
func (r *Report) WriteHTML(w io.Writer) error {
	type section struct {
		Title  string
		Charts []chart.Chart
		Tables []htmlTable
	}
	page := struct {
		R        *Report
		Facts    []string
		Sections []section
		Answers  htmlTable
	}{R: r, Facts: r.facts(), Answers: newHTMLTable(titled{"Answers", r.answerRows()})}
	for _, at := range r.settings() {
		s := section{Title: at.String()}
		for _, draw := range []func(setting) (*chart.Chart, error){
			func(at setting) (*chart.Chart, error) {
				return r.lengthChart(at, "TTFT of later turns, median and 95 % interval", "ms", func(a *ArmReport) *Summary { return a.Later.TTFT })
			},
			func(at setting) (*chart.Chart, error) {
				return r.lengthChart(at, "TTFT of turn 1, median and 95 % interval", "ms", func(a *ArmReport) *Summary { return a.Turn1.TTFT })
			},
			r.ratioChart,
			func(at setting) (*chart.Chart, error) {
				return r.lengthChart(at, "Time per output token of later turns", "ms", func(a *ArmReport) *Summary { return a.Later.TPOT })
			},
			func(at setting) (*chart.Chart, error) { return r.distributionChart(at) },
		} {
			c, err := draw(at)
			if err != nil {
				return fmt.Errorf("draw a chart: %w", err)
			}
			if c != nil {
				s.Charts = append(s.Charts, *c)
			}
		}
		for _, t := range r.tables(at) {
			if len(t.rows) > 1 {
				s.Tables = append(s.Tables, newHTMLTable(t))
			}
		}
		page.Sections = append(page.Sections, s)
	}
	return pageTemplate.Execute(w, page)
}

type htmlTable struct {
	Title string
	Head  []string
	Rows  [][]string
}

func newHTMLTable(t titled) htmlTable { return htmlTable{t.title, t.rows[0], t.rows[1:]} }

var pageTemplate = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>tarik bench: {{.R.Model}}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; color: #1d2733; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.5rem; border-bottom: 1px solid #c9d2dc; } h3 { font-size: 1rem; }
.first { border-left: .4rem solid #d16b2f; padding: .2rem 1rem; background: #fbf4ef; }
figure { display: inline-block; margin: .5rem; } figcaption { font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; } th, td { border: 1px solid #dbe2e9; padding: .15rem .5rem; text-align: left; white-space: nowrap; }
th { background: #f2f6f8; }
svg { max-width: 100%; height: auto; }
</style>
</head>
<body>
<h1>tarik bench: {{.R.Model}}</h1>
{{with .R.Note}}<p>{{.}}</p>{{end}}
<ul>{{range .Facts}}<li>{{.}}</li>{{end}}</ul>
{{if .R.Warnings}}<div class="first"><h2>Read this first</h2><ul>{{range .R.Warnings}}<li>{{.}}</li>{{end}}</ul></div>{{end}}
{{define "table"}}<h3>{{.Title}}</h3><div class="wide"><table><thead><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr></thead>
<tbody>{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</tbody></table></div>
{{end}}{{range .Sections}}<h2>{{.Title}}</h2>
{{range .Charts}}<figure><figcaption>{{.Title}}</figcaption>{{.SVG}}</figure>
{{end}}{{range .Tables}}{{template "table" .}}{{end}}{{end}}
{{if .Answers.Rows}}<h2>Are the answers the same</h2>{{template "table" .Answers}}{{end}}
<h2>What the numbers mean</h2>
<ul>{{range .R.Definitions}}<li>{{.}}</li>{{end}}</ul>
</body>
</html>
`))

var palette = []color.Color{
	color.RGBA{0x1f, 0x6f, 0x8b, 0xff},
	color.RGBA{0xd1, 0x6b, 0x2f, 0xff},
	color.RGBA{0x5b, 0x8c, 0x3a, 0xff},
	color.RGBA{0x8a, 0x4f, 0x9e, 0xff},
	color.RGBA{0xb0, 0x2a, 0x37, 0xff},
	color.RGBA{0x5c, 0x66, 0x70, 0xff},
}

const (
	chartWidth  = 15 * vg.Centimeter
	chartHeight = 9 * vg.Centimeter
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

// points are a line with intervals: a point without one has Low = High = Y.
type points []struct{ x, y, low, high float64 }

func (p points) Len() int                         { return len(p) }
func (p points) XY(i int) (x, y float64)          { return p[i].x, p[i].y }
func (p points) YError(i int) (low, high float64) { return p[i].y - p[i].low, p[i].high - p[i].y }

// line adds a line with its intervals, or steps without points.
func (d *drawing) line(name string, list points, dots bool) {
	color := palette[d.lines%len(palette)]
	d.lines++
	l, err := plotter.NewLine(list)
	if err != nil {
		d.err = err
		return
	}
	l.Color, l.Width = color, vg.Points(1.6)
	d.p.Add(l)
	d.p.Legend.Add(name, l)
	if !dots {
		return
	}
	s, err := plotter.NewScatter(list)
	if err != nil {
		d.err = err
		return
	}
	s.Color, s.Shape, s.Radius = color, draw.CircleGlyph{}, vg.Points(2.5)
	bars, err := plotter.NewYErrorBars(list)
	if err != nil {
		d.err = err
		return
	}
	bars.Color = color
	d.p.Add(s, bars)
}

func (d *drawing) chart(title string) (*chart.Chart, error) {
	if d.err != nil {
		return nil, d.err
	}
	if d.lines == 0 {
		return nil, nil
	}
	d.p.Y.Min = min(0, d.p.Y.Min)
	d.p.Y.Max += 0.25 * (d.p.Y.Max - d.p.Y.Min) // room for the legend
	if d.p.X.Min == d.p.X.Max {
		d.p.X.Max = d.p.X.Min*1.1 + 1
	}
	return chart.Draw(title, d.p, chartWidth, chartHeight)
}

// lengths marks the axis at the lengths that were measured.
func (d *drawing) lengths(at []float64) {
	slices.Sort(at)
	var ticks plot.ConstantTicks
	last := math.Inf(-1)
	for _, x := range at {
		t := plot.Tick{Value: x}
		if x-last > at[len(at)-1]/12 { // labels need room
			t.Label, last = fmt.Sprintf("%.0f", x), x
		}
		ticks = append(ticks, t)
	}
	d.p.X.Tick.Marker, d.p.X.Min = ticks, 0
}

// lengthChart draws a metric of each arm over the prompt length. Cells of given conversations have none.
func (r *Report) lengthChart(at setting, title, unit string, metric func(*ArmReport) *Summary) (*chart.Chart, error) {
	d := newDrawing("prompt tokens, median", unit)
	var xs []float64
	for i := range r.Plan.Arms {
		var list points
		for c := range r.in(at) {
			a := &c.Arms[i]
			s := metric(a)
			if s == nil || c.Cell.Length == 0 {
				continue
			}
			x := a.Later.Prompt
			if s == a.Turn1.TTFT || x == 0 {
				x = a.Turn1.Prompt
			}
			if x == 0 {
				x = float64(c.Cell.Length)
			}
			p := points{{x, s.P50, s.P50, s.P50}}
			if ci := s.P50Interval; ci != nil {
				p[0].low, p[0].high = ci.Low, ci.High
			}
			list = append(list, p...)
			xs = append(xs, x)
		}
		if len(list) > 0 {
			d.line(r.Plan.Arms[i].Name, list, true)
		}
	}
	d.lengths(xs)
	return d.chart(title)
}

// ratioChart draws TTFT of later turns against the baseline.
func (r *Report) ratioChart(at setting) (*chart.Chart, error) {
	d := newDrawing("prompt tokens of turn 1, as planned", "ratio of medians")
	var xs []float64
	for i := range r.Plan.Arms {
		var list points
		for c := range r.in(at) {
			for _, m := range c.Comparisons {
				if m.Arm != r.Plan.Arms[i].Name || m.Turns != "later" || m.Metric != "ttft_ms" || c.Cell.Length == 0 {
					continue
				}
				p := points{{float64(c.Cell.Length), m.Ratio, m.Ratio, m.Ratio}}
				if ci := m.RatioInterval; ci != nil {
					p[0].low, p[0].high = ci.Low, ci.High
				}
				list = append(list, p...)
				xs = append(xs, p[0].x)
			}
		}
		if len(list) > 0 {
			d.line(r.Plan.Arms[i].Name+" / "+r.Base, list, true)
		}
	}
	d.lengths(xs)
	if d.lines > 0 {
		equal := plotter.NewFunction(func(float64) float64 { return 1 })
		equal.Color, equal.Dashes = color.Gray{0x80}, []vg.Length{vg.Points(4), vg.Points(3)}
		d.p.Add(equal)
		d.p.Y.Max = max(d.p.Y.Max, 1)
	}
	return d.chart("TTFT of later turns, against " + r.Base)
}

// distributionChart draws the share of later turns by their TTFT, all lengths together only if there is one.
func (r *Report) distributionChart(at setting) (*chart.Chart, error) {
	d := newDrawing("TTFT of later turns, ms", "share of turns")
	for i := range r.Plan.Arms {
		cells, list := 0, points{}
		for c := range r.in(at) {
			cells++
			for k, v := range c.Arms[i].ttfts {
				share := float64(k+1) / float64(len(c.Arms[i].ttfts))
				list = append(list, points{{v, share, share, share}}...)
			}
		}
		if cells == 1 && len(list) > 1 {
			d.line(r.Plan.Arms[i].Name, list, false)
		}
	}
	return d.chart("TTFT of later turns, cumulative")
}
