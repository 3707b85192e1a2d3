// Package telemetry keeps what an operator wants to know about turns: a receipt for each, the
// newest of them to look at, all of them in a file if asked for, and counters.
//
// A receipt holds sizes, times and names, never a prompt, a reply, a handle or a token id.
// Everything here is safe for concurrent use.
package telemetry

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Receipt is what one turn chose and delivered. Its field names are API: more may be added, none
// is renamed. Tokens are counts; times are milliseconds. A null means that no engine said.
type Receipt struct {
	Turn         string    `json:"turn"`         // value of the response header X-Tarik-Turn
	Conversation string    `json:"conversation"` // the turn that began it
	TurnNumber   int       `json:"turn_number"`  // 1 for the first
	Time         time.Time `json:"time"`         // arrival, UTC
	Endpoint     string    `json:"endpoint"`
	Model        string    `json:"model"`
	Streamed     bool      `json:"streamed"`

	Arm string `json:"arm"` // local, pull, append, recompute, plain
	Why string `json:"why"`

	PromptTokens    int  `json:"prompt_tokens"`
	OutputTokens    int  `json:"output_tokens"`
	PLocalTokens    *int `json:"p_local_tokens"`    // found in P's own prefix cache
	PPulledTokens   *int `json:"p_pulled_tokens"`   // read from D
	PComputedTokens *int `json:"p_computed_tokens"` // the rest of the prompt
	DCachedTokens   *int `json:"d_cached_tokens"`   // what D's own usage calls cached

	TTFTMs   *float64 `json:"ttft_ms"`   // arrival to the first token sent; null if none was
	RenderMs float64  `json:"render_ms"` // asking for the prompt's token ids
	PMs      float64  `json:"p_ms"`
	DMs      float64  `json:"d_ms"`
	TotalMs  float64  `json:"total_ms"`

	Status  int    `json:"status"` // HTTP status the client got; 499 if it left before
	Error   string `json:"error,omitempty"`
	Prefill string `json:"prefill"` // the engine's URL, "" if it was not asked
	Decode  string `json:"decode"`
	// HeldTokens is how many tokens D keeps for the next turn, 0 if none.
	HeldTokens int `json:"held_tokens"`

	Price  *Price  `json:"price"`  // null if there was nothing to choose
	Return *Return `json:"return"` // what was done for the next turn; null if none can follow
}

// Price is how the arm was chosen.
type Price struct {
	Arm        string      `json:"arm"` // the cheapest; the turn's arm may differ, if what was expected was not there
	Why        string      `json:"why"`
	Candidates []Candidate `json:"candidates"`
	ActualMs   *float64    `json:"actual_ms"` // from the choice to D's first event; null if none came
}

// Candidate is one arm that could have been chosen.
type Candidate struct {
	Arm   string   `json:"arm"`
	Ms    float64  `json:"ms"`            // expected
	ErrMs *float64 `json:"err_ms"`        // one standard deviation of it; null while nothing is known
	Moves int      `json:"moves"`         // tokens whose KV goes over the link
	Not   string   `json:"not,omitempty"` // why it was out of the question
}

// Return is what was done after a turn so that P is prepared for the next one.
type Return struct {
	State    string  `json:"state"`           // pending, done, skipped, overtaken, dropped, failed
	Tokens   int     `json:"tokens"`          // what the next prompt begins with
	Pulled   int     `json:"pulled_tokens"`   // of them read from D
	Computed int     `json:"computed_tokens"` // of them computed by P; the rest P has had
	Ms       float64 `json:"ms"`              // rendering and P call
	Why      string  `json:"why"`
}

// Pending is the State of a return that has not ended.
const Pending = "pending"

// Receipts keeps the newest receipts in memory and passes all of them to a writer.
type Receipts struct {
	size int // of ring when it is full

	mu    sync.Mutex
	ring  []Receipt
	total int                // receipts ever added
	open  map[string]Receipt // by turn: not yet written, since their returns are pending
	out   io.Writer
	err   error // the first write error
}

// NewReceipts keeps the last n receipts. out, if not nil, gets each as one line of JSON.
func NewReceipts(n int, out io.Writer) *Receipts {
	return &Receipts{size: n, ring: make([]Receipt, 0, n), open: map[string]Receipt{}, out: out}
}

// Add records r. If its return is pending, the line is written when Settle or Flush says how that ended.
func (rs *Receipts) Add(r Receipt) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.ring) < rs.size {
		rs.ring = append(rs.ring, r)
	} else {
		rs.ring[rs.total%rs.size] = r
	}
	rs.total++
	if rs.out != nil && r.Return != nil && r.Return.State == Pending {
		rs.open[r.Turn] = r
		return
	}
	rs.write(r)
}

// Settle records how the return of a turn ended.
func (rs *Receipts) Settle(turn string, ret Return) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	// Returns end soon: the newest receipts are looked at first.
	for i := range rs.ring {
		if at := &rs.ring[(rs.total-1-i)%rs.size]; at.Turn == turn {
			at.Return = &ret
			break
		}
	}
	if r, ok := rs.open[turn]; ok {
		delete(rs.open, turn)
		r.Return = &ret
		rs.write(r)
	}
}

// Flush writes the receipts whose returns are still pending.
func (rs *Receipts) Flush() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for turn, r := range rs.open {
		delete(rs.open, turn)
		rs.write(r)
	}
}

// write writes one line. Callers hold the lock.
func (rs *Receipts) write(r Receipt) {
	if rs.out == nil || rs.err != nil {
		return
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = rs.out.Write(append(line, '\n'))
	}
	rs.err = err
}

// Err returns the error that stopped the writing of receipts, if any.
func (rs *Receipts) Err() error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.err
}

// Newest returns up to n receipts, the newest first.
func (rs *Receipts) Newest(n int) []Receipt {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	n = min(n, len(rs.ring))
	list := make([]Receipt, n)
	for i := range list {
		list[i] = rs.ring[(rs.total-1-i)%rs.size]
	}
	return list
}

// Find returns the receipt of one turn, if it is still kept.
func (rs *Receipts) Find(turn string) (Receipt, bool) {
	for _, r := range rs.Newest(rs.size) {
		if r.Turn == turn {
			return r, true
		}
	}
	return Receipt{}, false
}

// ServeHTTP answers GET /turns (?n=100, ?turn=ID, ?conversation=ID) with a JSON array, the newest
// first.
func (rs *Receipts) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	q := req.URL.Query()
	n := 100
	if s := q.Get("n"); s != "" {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 {
			http.Error(w, fmt.Sprintf("n=%q: want a number of receipts, 1 or more", s), http.StatusBadRequest)
			return
		}
		n = v
	}
	turn, conversation := q.Get("turn"), q.Get("conversation")
	list := make([]Receipt, 0, min(n, rs.size))
	for _, r := range rs.Newest(rs.size) {
		if len(list) == n {
			break
		}
		if (turn == "" || r.Turn == turn) && (conversation == "" || r.Conversation == conversation) {
			list = append(list, r)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	_ = enc.Encode(list) // the reader has left
}
