package kvp

import "time"

// Held is what D keeps for the next turn of a conversation, and what is known about it.
type Held struct {
	Handle Handle
	// Seq are the token ids of prompt and reply as D reported them. Invariant: the handle covers
	// a prefix of it, so Handle.Tokens <= len(Seq); a reply cut by length leaves len(Seq)-1.
	Seq []int32
	// PromptTokens is how many of Seq were the prompt: these P has computed or pulled itself.
	PromptTokens int
	// Until is when the handle is too old to be sent, on the caller's clock. D's own clock counts
	// from the end of the turn and is not ours.
	Until time.Duration
	// Within bounds a P call with the handle, 0 for not at all. It is for handles that tell no expiry: P
	// would not refuse to read blocks that D has let go.
	Within time.Duration
}

// Common returns how many tokens of prompt can be taken from what is held: the longest common
// prefix of prompt and Seq, and at most one token less than all that is known. The last sampled
// token has no KV yet, and engines that sample ahead report more tokens than they have verified.
func (h *Held) Common(prompt []int32) int {
	return min(CommonPrefix(prompt, h.Seq), h.Handle.Tokens, len(h.Seq)-1)
}

// CommonPrefix is how many tokens a and b have in common at their beginnings.
func CommonPrefix(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// Size is roughly how many bytes of memory h keeps alive.
func (h *Held) Size() int { return len(h.Handle.Raw()) + 8*h.Handle.BlockCount() + 4*len(h.Seq) + 128 }
