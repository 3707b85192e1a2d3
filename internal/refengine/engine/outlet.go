package engine

// outlet carries a request's outputs to its reader. Writing never blocks: a reader that falls behind
// gets several steps merged into one Output, as from vLLM's own front end. One writer: the machine,
// under Engine.mu.
type outlet struct {
	ch      chan Output // its last place is kept for the last output
	pending *Output     // newer than everything in ch
	closed  bool
}

// outletDepth is how many steps a reader may fall behind before outputs are merged.
const outletDepth = 64

func newOutlet(maxTokens int) *outlet {
	return &outlet{ch: make(chan Output, min(max(maxTokens, 1), outletDepth)+1)}
}

// put sends o, and closes the channel after the last output.
func (o *outlet) put(out Output) {
	if o.closed {
		return
	}
	if o.pending != nil {
		out = merge(*o.pending, out)
		o.pending = nil
	}
	switch {
	case out.Finish != FinishNone:
		o.ch <- out
		close(o.ch)
		o.closed = true
	case len(o.ch) < cap(o.ch)-1:
		o.ch <- out
	default:
		o.pending = &out
	}
}

// merge appends b to a, whose slices nobody else has.
func merge(a, b Output) Output {
	b.Tokens = append(a.Tokens, b.Tokens...)
	b.Logprobs = append(a.Logprobs, b.Logprobs...)
	if b.PromptLogprobs == nil {
		b.PromptLogprobs = a.PromptLogprobs
	}
	return b
}
