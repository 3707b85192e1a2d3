package gap

// Echo is what is known of a kind of reply: whether it comes back, in the next prompt, as the very tokens
// that were generated. Some templates drop a part of it, and some texts are told in other tokens than those
// that made them. The zero value knows nothing.
type Echo struct{ whole, since int }

const (
	sureAfter  = 3 // in a row, and it is taken for the rule …
	checkEvery = 8 // … that is looked at again now and then
)

// Sure reports whether the next reply may be taken to come back so, without a look at it.
func (e *Echo) Sure() bool {
	if e.whole < sureAfter {
		return false
	}
	e.since++
	return e.since%checkEvery != 0
}

// Saw notes a reply that was looked at.
func (e *Echo) Saw(whole bool) {
	e.whole++
	if !whole {
		e.whole = 0
	}
}
