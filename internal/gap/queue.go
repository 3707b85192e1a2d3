package gap

import (
	"slices"
	"time"
)

// Job is one return that waits for P. Times are on the caller's clock.
type Job[K comparable] struct {
	Key       K             // of the conversation; a newer job of the same one takes its place
	CostMs    float64       // how long P will be busy with it
	NotBefore time.Duration // it is not to start earlier
	Until     time.Duration // it is worth nothing from then on
	Tokens    int           // that P needs room for; 0 if unknown
	Handle    bool          // D keeps blocks for it
}

// Queue holds the returns of one P until they may start.
//
// Of those that may, the one with the least CostMs starts first: that way the blocks of all are held
// for the shortest time in sum. While turns are at P, returns get a share of its time and no more.
type Queue[K comparable] struct {
	// Limits. They may change at any time.
	Running int     // at once
	Waiting int     // at most; the longest job goes when there are more
	Share   float64 // of P's time, 0 to 1, while turns are there
	Room    int     // tokens that P can take in without waiting for another request to leave; 0 if unknown

	jobs    []Job[K]
	running int
	budget  float64 // ms that returns may take while turns are at P
	at      time.Duration
}

const (
	maxBudget = 2000   // ms: idle times are not saved up
	maxDebt   = 30_000 // ms: one long job does not keep the others away for ever
)

// Add puts a job into the queue. It returns the jobs that have to go: an older one of the same
// conversation, and the longest if there are too many, which may be j itself.
func (q *Queue[K]) Add(j Job[K]) (gone []Job[K]) {
	if old, ok := q.Remove(j.Key); ok {
		gone = append(gone, old)
	}
	q.jobs = append(q.jobs, j)
	for len(q.jobs) > q.Waiting {
		i := q.longest()
		gone = append(gone, q.jobs[i])
		q.jobs = slices.Delete(q.jobs, i, i+1)
	}
	return gone
}

func (q *Queue[K]) longest() int {
	most := 0
	for i, j := range q.jobs {
		if j.CostMs > q.jobs[most].CostMs {
			most = i
		}
	}
	return most
}

// Remove takes the waiting job of a conversation out.
func (q *Queue[K]) Remove(key K) (j Job[K], ok bool) {
	i := slices.IndexFunc(q.jobs, func(j Job[K]) bool { return j.Key == key })
	if i < 0 {
		return j, false
	}
	j = q.jobs[i]
	q.jobs = slices.Delete(q.jobs, i, i+1)
	return j, true
}

// Next takes out the job to start now, if there is one. turns is how many turns are at P. expired are
// jobs that have waited past their worth. Each job that was started must be reported by Finished.
func (q *Queue[K]) Next(now time.Duration, turns int) (start Job[K], ok bool, expired []Job[K]) {
	q.budget = min(maxBudget, q.budget+q.Share*float64(now-q.at)/float64(time.Millisecond))
	q.at = now
	q.jobs = slices.DeleteFunc(q.jobs, func(j Job[K]) bool {
		if j.Until <= now {
			expired = append(expired, j)
		}
		return j.Until <= now
	})
	if q.running >= q.Running || turns > 0 && q.budget <= 0 {
		return start, false, expired
	}
	best := -1
	for i, j := range q.jobs {
		if j.NotBefore <= now && q.fits(j) && (best < 0 || j.CostMs < q.jobs[best].CostMs) {
			best = i
		}
	}
	if best < 0 {
		return start, false, expired
	}
	start = q.jobs[best]
	q.jobs = slices.Delete(q.jobs, best, best+1)
	q.running++
	if turns > 0 {
		q.budget = max(-maxDebt, q.budget-start.CostMs)
	}
	return start, true, expired
}

// fits reports whether P has room for j now. A return that waits in P's own queue would keep D's blocks, and all requests
// behind it, waiting; and if requests at D wait for these blocks while P keeps theirs, nothing moves until D's time is over.
func (q *Queue[K]) fits(j Job[K]) bool { return q.Room == 0 || j.Tokens <= q.Room }

// Press takes out all jobs that blocks are kept for: D needs them for its own requests now.
func (q *Queue[K]) Press() (gone []Job[K]) {
	q.jobs = slices.DeleteFunc(q.jobs, func(j Job[K]) bool {
		if j.Handle {
			gone = append(gone, j)
		}
		return j.Handle
	})
	return gone
}

// Finished notes that a job that Next has returned is over.
func (q *Queue[K]) Finished() {
	if q.running == 0 {
		panic("BUG: gap: more jobs finished than started")
	}
	q.running--
}

// Len is how many jobs wait.
func (q *Queue[K]) Len() int { return len(q.jobs) }

// Wake is when Next may have something new to say without any other event, 0 if never.
func (q *Queue[K]) Wake(now time.Duration, turns int) time.Duration {
	if q.running >= q.Running {
		return 0
	}
	var at time.Duration
	soonest := func(t time.Duration) {
		if at == 0 || t < at {
			at = max(t, now+time.Millisecond)
		}
	}
	for _, j := range q.jobs {
		ready := max(j.NotBefore, now)
		switch {
		case !q.fits(j):
			ready = j.Until // more room is an event of its own
		case turns == 0 || q.budget > 0:
		case q.Share > 0:
			ready = max(ready, now+time.Duration((-q.budget/q.Share+1)*float64(time.Millisecond)))
		default:
			ready = j.Until // there is nothing to wait for but the end of the turns
		}
		soonest(min(ready, j.Until))
	}
	return at
}
