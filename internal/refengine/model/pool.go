package model

import "fmt"

// Pool is the paged KV cache of one engine, and the workspace of its Forward calls.
//
// Memory is [blocks][layers][2][blockSize][KVHeads*HeadDim] float32, keys before values: one block is one contiguous
// slab, so an engine moves it with one copy. Keys are stored with their rotary rotation applied.
type Pool struct {
	model     *Model
	blocks    int
	blockSize int // tokens
	slab      int // float32 per block
	kv        []float32
	ws        workspace
}

// NewPool makes a zeroed pool of `blocks` blocks, each for blockSize tokens.
func (m *Model) NewPool(blocks, blockSize int) *Pool {
	if blocks < 0 || blockSize < 1 {
		panic(fmt.Sprintf("BUG: pool of %d blocks with %d tokens each", blocks, blockSize))
	}
	p := &Pool{model: m, blocks: blocks, blockSize: blockSize}
	p.slab = m.cfg.Layers * 2 * blockSize * m.cfg.kvRows()
	p.kv = make([]float32, blocks*p.slab)
	return p
}

// Block returns block id's slab, [layers][2][blockSize][KVHeads*HeadDim]. It is the memory itself, not a copy.
func (p *Pool) Block(id int) []float32 {
	return p.kv[id*p.slab:][:p.slab:p.slab]
}

// BlockSize returns how many tokens a block holds.
func (p *Pool) BlockSize() int { return p.blockSize }

// Blocks returns how many blocks the pool has.
func (p *Pool) Blocks() int { return p.blocks }

// keyOffset returns where in kv the key of one position begins, for layer 0, head 0.
func (p *Pool) keyOffset(table []int, position int) int {
	return table[position/p.blockSize]*p.slab + position%p.blockSize*p.model.cfg.kvRows()
}

// layerStride and valueShift lead from a key to the same position's key one layer on, and to its value.
func (p *Pool) layerStride() int { return 2 * p.valueShift() }
func (p *Pool) valueShift() int  { return p.blockSize * p.model.cfg.kvRows() }
