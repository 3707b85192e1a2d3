package model

import "fmt"

// passTokens is how many tokens go through the layers together. A larger batch takes several passes, so the workspace
// does not grow with it; larger passes would gain nothing, since each weight is already used hundreds of times per read.
const passTokens = 384

// piece is the part of a chunk that one pass computes.
type piece struct {
	blocks []int
	start  int // position of the first token
	row    int // of the first token, in the workspace
	tokens int
	wanted int // logits are wanted for this many of the last tokens
}

// workspace is what a pass needs besides weights and KV. A row is a token.
type workspace struct {
	ids      []int32
	pieces   []piece
	x        []float32 // [rows][HiddenSize], the residual stream
	normed   []float32 // [rows][HiddenSize]
	qkv      []float32 // [rows][qkv stride]
	attn     []float32 // [rows][Heads*HeadDim]
	gateUp   []float32 // [rows][gateUp stride]
	act      []float32 // [rows][IntermediateSize]
	proj     []float32 // [rows][out or down stride]
	cos, sin []float32 // [rows][HeadDim/2]
	logits   []float32 // [rows][head stride]
	tasks    []attnTask
	scratch  []attnScratch // per worker
}

// grow returns a slice of n values whose content does not matter, reusing s.
func grow(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

// Forward computes a batch of chunks: it writes the KV of all their tokens into p and returns, for each chunk, the
// logits of its last Logits tokens, [Logits][VocabSize] in one slice.
//
// The KV of every position before a chunk's Start must already be in the chunk's blocks. A chunk may read KV that an
// earlier chunk of the same batch writes. No two tokens of a batch may share a slot.
//
// The returned slices belong to p and hold until its next Forward. Forward panics if a token id, a position or a block
// id is out of range: the caller answers for what it schedules.
func (m *Model) Forward(p *Pool, batch []Chunk) [][]float32 {
	if p.model != m {
		panic("BUG: pool of another model")
	}
	wanted := 0
	for i := range batch {
		m.check(p, &batch[i])
		wanted += batch[i].Logits
	}
	ws := &p.ws
	stride, vocab := m.head.stride(), m.cfg.VocabSize
	ws.logits = grow(ws.logits, wanted*stride)
	t := newTeam()
	defer t.stop()

	rest := ws.logits
	flush := func() {
		rest = rest[m.pass(p, t, rest)*stride:]
		ws.ids, ws.pieces = ws.ids[:0], ws.pieces[:0]
	}
	ws.ids, ws.pieces = ws.ids[:0], ws.pieces[:0]
	for i := range batch {
		c := &batch[i]
		for done := 0; done < len(c.Tokens); {
			n := min(len(c.Tokens)-done, passTokens-len(ws.ids))
			ws.pieces = append(ws.pieces, piece{
				blocks: c.Blocks, start: c.Start + done, row: len(ws.ids), tokens: n,
				wanted: max(0, min(n, done+n-(len(c.Tokens)-c.Logits))),
			})
			ws.ids = append(ws.ids, c.Tokens[done:done+n]...)
			done += n
			if len(ws.ids) == passTokens {
				flush()
			}
		}
	}
	if len(ws.ids) > 0 {
		flush()
	}

	out := make([][]float32, len(batch))
	row := 0
	for i := range batch {
		first := row
		for range batch[i].Logits {
			if stride != vocab { // close the gaps that padding leaves
				copy(ws.logits[row*vocab:][:vocab], ws.logits[row*stride:][:vocab])
			}
			row++
		}
		out[i] = ws.logits[first*vocab : row*vocab : row*vocab]
	}
	return out
}

// check panics if a chunk cannot be computed.
func (m *Model) check(p *Pool, c *Chunk) {
	end := c.Start + len(c.Tokens)
	switch {
	case c.Start < 0 || end > m.cfg.MaxPositions:
		panic(fmt.Sprintf("BUG: positions %d to %d in a model with %d", c.Start, end, m.cfg.MaxPositions))
	case len(c.Blocks)*p.blockSize < end:
		panic(fmt.Sprintf("BUG: %d blocks of %d tokens for %d positions", len(c.Blocks), p.blockSize, end))
	case c.Logits < 0 || c.Logits > len(c.Tokens):
		panic(fmt.Sprintf("BUG: %d logits of a chunk of %d tokens", c.Logits, len(c.Tokens)))
	}
	for _, id := range c.Tokens {
		if id < 0 || int(id) >= m.cfg.VocabSize {
			panic(fmt.Sprintf("BUG: token %d in a vocabulary of %d", id, m.cfg.VocabSize))
		}
	}
	for _, b := range c.Blocks[:(end+p.blockSize-1)/p.blockSize] {
		if b < 0 || b >= p.blocks {
			panic(fmt.Sprintf("BUG: block %d in a pool of %d", b, p.blocks))
		}
	}
}

// pass computes the tokens gathered in the workspace, writes the wanted logits to the front of logits and returns how many
// rows that are.
func (m *Model) pass(p *Pool, t *team, logits []float32) int {
	ws, c := &p.ws, &m.cfg
	rows, hidden, half := len(ws.ids), c.HiddenSize, c.HeadDim/2
	ws.size(m, rows)

	t.rows(rows, 4*hidden, func(r int) {
		m.embed.row(int(ws.ids[r]), ws.x[r*hidden:][:hidden])
	})
	for _, pc := range ws.pieces {
		for i := range pc.tokens {
			at := (pc.row + i) * half
			fillRope(m.invFreq, pc.start+i, ws.cos[at:at+half], ws.sin[at:at+half])
		}
	}
	for l := range m.layers {
		ly := &m.layers[l]
		t.rows(rows, hidden, func(r int) {
			rmsNorm(ws.x[r*hidden:][:hidden], ly.attnNorm, ws.normed[r*hidden:], c.NormEps)
		})
		t.multiply(&ly.qkv, ws.normed, hidden, rows, ws.qkv)
		m.storeKV(p, t, l)
		if l == len(m.layers)-1 {
			// Nothing after this reads the other tokens: their last keys and values are stored.
			if rows = ws.keepWanted(hidden, ly.qkv.w.stride()); rows == 0 {
				return 0
			}
		}
		m.attend(p, t, l)
		t.multiply(&ly.out, ws.attn, c.qRows(), rows, ws.proj)
		stride := ly.out.w.stride()
		t.rows(rows, 2*hidden, func(r int) {
			x := ws.x[r*hidden:][:hidden]
			add(x, ws.proj[r*stride:][:hidden])
			rmsNorm(x, ly.mlpNorm, ws.normed[r*hidden:], c.NormEps)
		})
		t.multiply(&ly.gateUp, ws.normed, hidden, rows, ws.gateUp)
		inner, width := c.IntermediateSize, ly.gateUp.w.stride()
		t.rows(rows, 4*inner, func(r int) {
			gu := ws.gateUp[r*width:]
			swiglu(gu[:inner], gu[inner:2*inner], ws.act[r*inner:][:inner])
		})
		t.multiply(&ly.down, ws.act, inner, rows, ws.proj)
		stride = ly.down.w.stride()
		t.rows(rows, hidden, func(r int) {
			add(ws.x[r*hidden:][:hidden], ws.proj[r*stride:][:hidden])
		})
	}
	t.rows(rows, hidden, func(r int) {
		rmsNorm(ws.x[r*hidden:][:hidden], m.norm, ws.normed[r*hidden:], c.NormEps)
	})
	t.multiply(&linear{w: m.head}, ws.normed, hidden, rows, logits)
	return rows
}

// size makes the workspace large enough for a pass.
func (ws *workspace) size(m *Model, rows int) {
	c, ly := &m.cfg, &m.layers[0]
	ws.x = grow(ws.x, rows*c.HiddenSize)
	ws.normed = grow(ws.normed, rows*c.HiddenSize)
	ws.qkv = grow(ws.qkv, rows*ly.qkv.w.stride())
	ws.attn = grow(ws.attn, rows*c.qRows())
	ws.gateUp = grow(ws.gateUp, rows*ly.gateUp.w.stride())
	ws.act = grow(ws.act, rows*c.IntermediateSize)
	ws.proj = grow(ws.proj, rows*ly.out.w.stride())
	ws.cos = grow(ws.cos, rows*c.HeadDim/2)
	ws.sin = grow(ws.sin, rows*c.HeadDim/2)
}

// storeKV rotates queries and keys of all rows and writes keys and values to their slots.
func (m *Model) storeKV(p *Pool, t *team, layer int) {
	ws, c := &p.ws, &m.cfg
	stride, dim, half := m.layers[layer].qkv.w.stride(), c.HeadDim, c.HeadDim/2
	q, kv := c.qRows(), c.kvRows()
	for i := range ws.pieces {
		pc := &ws.pieces[i]
		t.rows(pc.tokens, 2*(q+2*kv), func(i int) {
			r := pc.row + i
			row, cos, sin := ws.qkv[r*stride:], ws.cos[r*half:][:half], ws.sin[r*half:][:half]
			for h := 0; h < q+kv; h += dim {
				rotate(row[h:h+dim], cos, sin)
			}
			at := p.keyOffset(pc.blocks, pc.start+i) + layer*p.layerStride()
			copy(p.kv[at:], row[q:q+kv])
			copy(p.kv[at+p.valueShift():], row[q+kv:q+2*kv])
		})
	}
}

// keepWanted drops the rows without wanted logits from the residual stream and the projections, and returns how many are left.
func (ws *workspace) keepWanted(hidden, stride int) int {
	rows := 0
	for i := range ws.pieces {
		pc := &ws.pieces[i]
		skip := pc.tokens - pc.wanted
		from := pc.row + skip
		copy(ws.x[rows*hidden:], ws.x[from*hidden:][:pc.wanted*hidden])
		copy(ws.qkv[rows*stride:], ws.qkv[from*stride:][:pc.wanted*stride])
		pc.start, pc.row, pc.tokens = pc.start+skip, rows, pc.wanted
		rows += pc.wanted
	}
	return rows
}

// add computes x += y.
func add(x, y []float32) {
	y = y[:len(x)]
	for i := range x {
		x[i] += y[i]
	}
}
