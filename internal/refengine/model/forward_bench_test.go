package model

import (
	"fmt"
	"os"
	"testing"
)

func benchModels(b *testing.B) map[string]*Model {
	models := map[string]*Model{"tiny": Tiny(1, tinyVocab, tinyEmission(), []int32{tinyEOS})}
	if dir := os.Getenv("TARIK_SMOLLM2_DIR"); dir != "" {
		m, err := LoadDir(dir)
		if err != nil {
			b.Fatal(err)
		}
		models["smollm2"] = m
	}
	return models
}

// BenchmarkPrefill computes a whole prompt in one call, on all cores.
func BenchmarkPrefill(b *testing.B) {
	models := benchModels(b)
	f := func(name string, sizes ...int) {
		m := models[name]
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				if m == nil {
					b.Skip("TARIK_SMOLLM2_DIR is not set")
				}
				tokens := randomTokens(1, n, m.cfg.VocabSize)
				p := m.NewPool(n/16+1, 16)
				b.ReportAllocs()
				for b.Loop() {
					m.Forward(p, []Chunk{{Tokens: tokens, Blocks: table(p.Blocks()), Logits: 1}})
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
	f("tiny", 128, 2048, 16384, 30000)
	f("smollm2", 128, 512, 2048)
}

// BenchmarkDecode computes one token of each of some sequences.
func BenchmarkDecode(b *testing.B) {
	models := benchModels(b)
	f := func(name string, context, sequences int) {
		m := models[name]
		b.Run(fmt.Sprintf("%s/%dx%d", name, sequences, context), func(b *testing.B) {
			if m == nil {
				b.Skip("TARIK_SMOLLM2_DIR is not set")
			}
			perSequence := context/16 + 1
			p := m.NewPool(sequences*perSequence, 16)
			var batch []Chunk
			for i := range sequences {
				batch = append(batch, Chunk{
					Tokens: randomTokens(uint64(i), 1, m.cfg.VocabSize), Start: context,
					Blocks: table(p.Blocks())[i*perSequence:], Logits: 1,
				})
			}
			b.ReportAllocs()
			for b.Loop() {
				m.Forward(p, batch)
			}
			b.ReportMetric(float64(sequences)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
	f("tiny", 2000, 1)
	f("tiny", 2000, 8)
	f("tiny", 16000, 1)
	f("smollm2", 500, 1)
	f("smollm2", 500, 4)
	f("smollm2", 500, 8)
	f("smollm2", 4000, 1)
}
