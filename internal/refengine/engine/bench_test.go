package engine

import (
	"fmt"
	"testing"

	"github.com/tarik-kv/tarik/internal/refengine/model"
)

// BenchmarkRead moves blocks of a SmolLM2-sized cache over loopback.
func BenchmarkRead(b *testing.B) {
	shape := model.Config{Name: "smol", VocabSize: 512, Layers: 30, KVHeads: 3, HeadDim: 64, MaxPositions: 1 << 20}
	for _, blockSize := range []int{16, 128} {
		b.Run(fmt.Sprint(blockSize), func(b *testing.B) {
			floats := 30 * 2 * blockSize * 3 * 64
			blocks := 64 * 128 / blockSize
			mk := func() *Engine {
				c := &flat{hashModel: newHashModel(blocks, blockSize), floats: floats, kv: make([]float32, floats*blocks)}
				e, err := NewCompute(Config{KV: roleD(), BlockSize: blockSize, Blocks: blocks, MaxModelLen: 4096}, shape, c, nil)
				if err != nil {
					b.Fatal(err)
				}
				return e
			}
			owner, r := mk(), mk()
			defer owner.Close()
			defer r.Close()
			var ids []int
			for id := range blocks {
				ids = append(ids, id)
			}
			p := &transferParams{engineID: owner.ID(), host: "127.0.0.1", port: fmt.Sprint(owner.side.port())}
			q, addr := r.side.reader.peer(p)
			meta, _, err := r.side.reader.shakeHands(q, addr, p)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(4 * floats * blocks))
			b.ReportAllocs()
			for b.Loop() {
				c, _, err := r.side.reader.fetch(q, addr, meta, ids, ids)
				if err != nil {
					b.Fatal(err)
				}
				q.keep(r.side, c)
			}
		})
	}
}

// flat has blocks of any size.
type flat struct {
	*hashModel
	floats int
	kv     []float32
}

func (f *flat) Block(id int) []float32 { return f.kv[id*f.floats:][:f.floats:f.floats] }
