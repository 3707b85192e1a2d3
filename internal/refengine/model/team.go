package model

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// aloneBelow is the work, in multiply-adds, that one core does before another would have woken up.
const aloneBelow = 100_000

// team is the goroutines of one Forward call. They start with the first work that is worth sharing and end with the call, so a
// Model or Pool needs no closing. How work is shared never changes a result: tasks write disjoint outputs.
type team struct {
	size int // the caller included
	wake chan struct{}
	busy sync.WaitGroup // tasks in progress
	live sync.WaitGroup // goroutines

	// The work in progress; written by the caller while nobody else works.
	task  func(worker, i int)
	tasks int64
	next  atomic.Int64
}

func newTeam() *team { return &team{size: runtime.GOMAXPROCS(0)} }

// stop ends the goroutines and waits until they have.
func (t *team) stop() {
	if t.wake != nil {
		close(t.wake)
		t.live.Wait()
	}
}

// run calls task(worker, i) for i = 0 … n-1, in any order and on up to size workers, and returns when all are done. work is the sum,
// in multiply-adds.
func (t *team) run(n, work int, task func(worker, i int)) {
	helpers := min(t.size, n) - 1
	if helpers < 1 || work < aloneBelow {
		for i := range n {
			task(0, i)
		}
		return
	}
	if t.wake == nil {
		t.wake = make(chan struct{})
		for w := 1; w < t.size; w++ {
			t.live.Go(func() {
				for range t.wake {
					t.drain(w)
					t.busy.Done()
				}
			})
		}
	}
	t.task, t.tasks = task, int64(n)
	t.next.Store(0)
	t.busy.Add(helpers)
	for range helpers {
		t.wake <- struct{}{}
	}
	t.drain(0)
	t.busy.Wait()
}

func (t *team) drain(worker int) {
	for {
		i := t.next.Add(1) - 1
		if i >= t.tasks {
			return
		}
		t.task(worker, int(i))
	}
}

// rows calls f for each row of a pass, many rows to a task. work is per row, in multiply-adds.
func (t *team) rows(n, work int, f func(r int)) {
	const perTask = 16
	if n <= perTask {
		for r := range n {
			f(r)
		}
		return
	}
	t.run((n+perTask-1)/perTask, n*work, func(_, i int) {
		for r := i * perTask; r < min((i+1)*perTask, n); r++ {
			f(r)
		}
	})
}

// multiply computes out[r] = W x[r] + b for all rows. x is [rows][xStride], out is [rows][W's stride].
func (t *team) multiply(lin *linear, x []float32, xStride, rows int, out []float32) {
	// Enough rows that a panel of weights is used often once read, few enough that they stay in the second-level cache.
	const cacheFloats = 64 << 10
	m := lin.w
	block := max(cacheFloats/m.cols/gemmTokens*gemmTokens, gemmTokens)
	blocks := (rows + block - 1) / block
	// A task is a few panels: large enough to be worth fetching, small enough that the workers end together.
	panels := min(max(m.panels()/(4*t.size), 1), max(1, 1<<18/(m.cols*min(rows, block))))
	perBlock := (m.panels() + panels - 1) / panels
	t.run(blocks*perBlock, rows*m.cols*m.stride()/8, func(_, i int) {
		from := i / perBlock * block
		to := min(from+block, rows)
		first := i % perBlock * panels
		lin.multiply(x[from*xStride:], xStride, to-from, first, min(first+panels, m.panels()), out[from*m.stride():])
	})
}

// multiply computes panels [first, last) of the product for some rows.
func (lin *linear) multiply(x []float32, xStride, rows, first, last int, out []float32) {
	m, width := lin.w, lin.w.stride()
	at := first
	if rows == 1 {
		at = gemv(m, first, last, x, out)
	}
	for ; at < last; at++ {
		for r := 0; r < rows; r += gemmTokens {
			gemm(m, at, x[r*xStride:], xStride, min(gemmTokens, rows-r), out[r*width+at*panelRows:], width)
		}
	}
	if lin.bias != nil {
		from, to := first*panelRows, min(last*panelRows, m.rows)
		for r := range rows {
			add(out[r*width+from:r*width+to], lin.bias[from:to])
		}
	}
}
