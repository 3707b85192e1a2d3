// Package chart draws plots as SVG that stands inside a page: the charts of the reports of analyze, sim and
// bench look alike. What a chart shows, and in which colours, is the report's business.
package chart

import (
	"bytes"
	"html/template"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart is a drawn plot.
type Chart struct {
	Title string
	SVG   template.HTML
}

// New returns an empty plot with these axis labels.
func New(x, y string) *plot.Plot {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Left = true, true
	return p
}

// Draw draws p. Labels must be text that a page may contain: they are escaped by the plotting library only.
func Draw(title string, p *plot.Plot, width, height vg.Length) (*Chart, error) {
	c := vgsvg.NewWith(vgsvg.UseWH(width, height))
	p.Draw(draw.Crop(draw.New(c), vg.Points(4), -vg.Points(16), vg.Points(4), -vg.Points(8))) // room for the last labels
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return nil, err
	}
	// The file begins with an XML declaration, which has no place inside a page.
	svg := b.Bytes()
	if i := bytes.Index(svg, []byte("<svg")); i > 0 {
		svg = svg[i:]
	}
	return &Chart{title, template.HTML(svg)}, nil //nolint:gosec // written by the plotting library from numbers and plain labels
}
