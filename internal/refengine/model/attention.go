package model

import "math"

// laneTilesPerTask bounds how many lane tiles share one walk over the keys: a tile of keys and values is then read from
// memory once and from the first-level cache by the others.
const laneTilesPerTask = 8

// attnTask is a run of lane tiles of one piece and one KV head. A lane is one query: token i of the piece and query head g of
// the KV head's group are lane i*group+g, and attnLanes of them make a tile.
type attnTask struct {
	piece       int
	kvHead      int
	first, last int // lane tiles [first, last)
}

// attnState is the running softmax of one lane tile.
type attnState struct {
	top [attnLanes]float32 // largest score so far, in units of log2
	sum [attnLanes]float32 // of weights 2^(score-top)
	acc []float32          // [HeadDim][attnLanes], sum of weight × value

	lanes  int            // in use; what the others compute, from whatever is there, is dropped
	limits [attnLanes]int // positions that a lane sees, ascending
}

// visible says how many positions of the tile of n at `at` each lane sees (more than n: all, less than one: none), and how many the
// lane that sees most does.
func (st *attnState) visible(at, n int) (lanes [attnLanes]int32, most int) {
	if st.limits[0] >= at+n {
		for l := range lanes {
			lanes[l] = attnTile
		}
		return lanes, n
	}
	for l, limit := range st.limits {
		lanes[l] = int32(limit - at)
	}
	return lanes, min(st.limits[attnLanes-1]-at, n)
}

// attnScratch is one worker's memory for a task.
type attnScratch struct {
	q      []float32 // [laneTilesPerTask][HeadDim][attnLanes]
	states [laneTilesPerTask]attnState
	s      []float32     // [attnTile][attnLanes]
	rows   [attnTile]int // offsets of keys
}

// attend computes causal attention of the workspace's rows over their block tables, from ws.qkv into ws.attn.
func (m *Model) attend(p *Pool, t *team, layer int) {
	ws, c := &p.ws, &m.cfg
	group := c.Heads / c.KVHeads
	tiles, work := 0, 0
	for i := range ws.pieces {
		pc := &ws.pieces[i]
		tiles += (pc.tokens*group + attnLanes - 1) / attnLanes * c.KVHeads
		work += pc.tokens * (pc.start + pc.tokens) * c.qRows() * 2
	}
	perTask := min(max(tiles/(4*t.size), 1), laneTilesPerTask)
	ws.tasks = ws.tasks[:0]
	for i := range ws.pieces {
		n := (ws.pieces[i].tokens*group + attnLanes - 1) / attnLanes
		for first := 0; first < n; first += perTask {
			for h := range c.KVHeads {
				ws.tasks = append(ws.tasks, attnTask{piece: i, kvHead: h, first: first, last: min(first+perTask, n)})
			}
		}
	}
	for len(ws.scratch) < t.size {
		sc := attnScratch{
			q: make([]float32, laneTilesPerTask*c.HeadDim*attnLanes),
			s: make([]float32, attnTile*attnLanes),
		}
		for i := range sc.states {
			sc.states[i].acc = make([]float32, c.HeadDim*attnLanes)
		}
		ws.scratch = append(ws.scratch, sc)
	}
	t.run(len(ws.tasks), work, func(worker, i int) {
		m.attendTask(p, &ws.tasks[i], &ws.scratch[worker], layer)
	})
}

// attendTask computes one task.
func (m *Model) attendTask(p *Pool, task *attnTask, sc *attnScratch, layer int) {
	ws, c := &p.ws, &m.cfg
	pc := &ws.pieces[task.piece]
	group, dim := c.Heads/c.KVHeads, c.HeadDim
	lanes := pc.tokens * group
	stride := m.layers[layer].qkv.w.stride()
	heads := task.kvHead * group * dim // of this group, within a row of queries
	scale := float32(log2E / math.Sqrt(float64(dim)))

	for tile := task.first; tile < task.last; tile++ {
		st := &sc.states[tile-task.first]
		clear(st.acc)
		st.lanes = min(lanes-tile*attnLanes, attnLanes)
		q := sc.q[(tile-task.first)*dim*attnLanes:][:dim*attnLanes]
		for l := range attnLanes {
			st.top[l], st.sum[l] = float32(math.Inf(-1)), 0
			lane := tile*attnLanes + l
			st.limits[l] = pc.start + min(lane, lanes-1)/group + 1
			if l >= st.lanes {
				for d := range dim {
					q[d*attnLanes+l] = 0
				}
				continue
			}
			src := ws.qkv[(pc.row+lane/group)*stride+heads+lane%group*dim:][:dim]
			for d, v := range src {
				q[d*attnLanes+l] = v * scale
			}
		}
	}

	end := pc.start + (min(task.last*attnLanes, lanes)-1)/group + 1 // positions that the last lane sees
	base := layer*p.layerStride() + task.kvHead*dim
	for at := 0; at < end; at += attnTile {
		n := min(attnTile, end-at)
		p.keyRows(pc.blocks, at, base, sc.rows[:n])
		for tile := task.first; tile < task.last; tile++ {
			st := &sc.states[tile-task.first]
			visible, most := st.visible(at, n)
			if most <= 0 {
				continue
			}
			q := sc.q[(tile-task.first)*dim*attnLanes:][:dim*attnLanes]
			rows, s := sc.rows[:most], sc.s[:most*attnLanes]
			scores(q, dim, st.lanes, p.kv, rows, s)
			softmax(s, most, &visible, st, dim)
			values(st.acc, dim, st.lanes, p.kv, rows, p.valueShift(), s)
		}
	}

	for tile := task.first; tile < task.last; tile++ {
		st := &sc.states[tile-task.first]
		for l := range st.lanes {
			lane := tile*attnLanes + l
			dst := ws.attn[(pc.row+lane/group)*c.qRows()+heads+lane%group*dim:][:dim]
			for d := range dst {
				dst[d] = st.acc[d*attnLanes+l] / st.sum[l]
			}
		}
	}
}

// keyRows fills rows with the offsets in kv of the keys at positions at, at+1, …; base selects layer and head.
func (p *Pool) keyRows(table []int, at, base int, rows []int) {
	width := p.model.cfg.kvRows()
	block, slot := at/p.blockSize, at%p.blockSize
	offset := table[block]*p.slab + slot*width + base
	for i := range rows {
		if slot == p.blockSize {
			block, slot = block+1, 0
			offset = table[block]*p.slab + base
		}
		rows[i] = offset
		offset += width
		slot++
	}
}
