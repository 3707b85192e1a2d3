package sim

import "testing"

func BenchmarkRun(b *testing.B) {
	for _, p := range Policies {
		b.Run(string(p), func(b *testing.B) {
			o := DefaultOptions()
			o.Policy, o.Prefills, o.Decodes = p, 16, 16
			o.Synthetic.Rate, o.Synthetic.Requests = 0.2, 100_000
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Run(o); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1e5, "us/request")
		})
	}
}
