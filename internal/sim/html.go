package sim

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
	"gonum.org/v1/plot/vg/draw"

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
	draw := []func() (*chart.Chart, error){r.ttftChart, r.itlChart}
	if r.Plan != nil {
		draw = []func() (*chart.Chart, error){r.Plan.frontier}
	}
	for _, f := range draw {
		c, err := f()
		if err != nil {
			return fmt.Errorf("draw a chart: %w", err)
		}
		if c != nil {
			page.Charts = append(page.Charts, *c)
		}
	}
	return pageTemplate.Execute(w, page)
}

var pageTemplate = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>tarik sim</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1d2733; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
figure { display: inline-block; margin: .5rem; } figcaption { font-weight: 600; }
pre { background: #f6f8fa; padding: 1rem; overflow-x: auto; font-size: 12px; }
svg { max-width: 100%; height: auto; }
</style>
</head>
<body>
<h1>tarik sim: {{.R.Model}} on {{.R.GPU}}</h1>
{{range .Charts}}<figure><figcaption>{{.Title}}</figcaption>{{.SVG}}</figure>
{{end}}
<h2>All numbers</h2>
<pre>{{.Text}}</pre>
</body>
</html>
`))

var palette = []color.Color{
	color.RGBA{0x1f, 0x6f, 0x8b, 0xff},
	color.RGBA{0xd1, 0x6b, 0x2f, 0xff},
	color.RGBA{0x5b, 0x8c, 0x3a, 0xff},
	color.RGBA{0x8a, 0x4f, 0x9e, 0xff},
	color.RGBA{0xb0, 0x2a, 0x3a, 0xff},
	color.RGBA{0x55, 0x60, 0x6e, 0xff},
}

const (
	chartWidth  = 15 * vg.Centimeter
	chartHeight = 9 * vg.Centimeter
)

// points of a cumulative distribution.
func (h *histogram) points() plotter.XYs {
	var xy plotter.XYs
	sum := 0.0
	for i, w := range h.buckets {
		if w == 0 {
			continue
		}
		sum += w
		xy = append(xy, plotter.XY{X: histLeast * math.Pow(histGrowth, float64(i)), Y: sum / h.total})
	}
	return xy
}

func (r *Report) cumulative(title, x string, of func(*Result) *histogram) (*chart.Chart, error) {
	p := chart.New(x, "share")
	p.Y.Min, p.Y.Max = 0, 1
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	lines := 0
	for i, res := range r.Results {
		xy := of(res).points()
		if len(xy) == 0 {
			continue
		}
		l, err := plotter.NewLine(xy)
		if err != nil {
			return nil, err
		}
		l.Color, l.Width = palette[i%len(palette)], vg.Points(1.6)
		p.Add(l)
		p.Legend.Add(string(res.Policy), l)
		lines++
	}
	if lines == 0 {
		return nil, nil
	}
	if p.X.Min == p.X.Max {
		p.X.Max = p.X.Min*1.1 + 1
	}
	return chart.Draw(title, p, chartWidth, chartHeight)
}

func (r *Report) ttftChart() (*chart.Chart, error) {
	return r.cumulative("Time to first token, cumulative", "ms", func(x *Result) *histogram { return &x.ttft })
}

func (r *Report) itlChart() (*chart.Chart, error) {
	return r.cumulative("Time between tokens, cumulative", "ms", func(x *Result) *histogram { return &x.itl })
}

// frontier draws the fleets that keep the SLO.
func (p *Plan) frontier() (*chart.Chart, error) {
	if len(p.Fleets) == 0 {
		return nil, nil
	}
	pl := chart.New("decode engines", "prefill engines")
	of := map[Policy]plotter.XYs{}
	for _, f := range p.Fleets {
		of[f.Policy] = append(of[f.Policy], plotter.XY{X: float64(f.Decodes), Y: float64(f.Prefills)})
	}
	for i, policy := range Policies {
		if len(of[policy]) == 0 {
			continue
		}
		s, err := plotter.NewScatter(of[policy])
		if err != nil {
			return nil, err
		}
		s.GlyphStyle = draw.GlyphStyle{Color: palette[i%len(palette)], Radius: vg.Points(4), Shape: draw.CircleGlyph{}}
		pl.Add(s)
		pl.Legend.Add(string(policy), s)
	}
	pl.X.Min, pl.Y.Min = 0, 0
	pl.X.Max, pl.Y.Max = pl.X.Max*1.1+1, pl.Y.Max*1.1+1
	return chart.Draw("Smallest fleets within the SLO", pl, chartWidth, chartHeight)
}
