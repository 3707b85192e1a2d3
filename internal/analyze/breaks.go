package analyze

import (
	"bytes"
	"regexp"
	"unicode/utf8"
)

// breakKind is why a prompt does not begin with the one before it and its reply.
type breakKind uint8

const (
	noBreak        breakKind = iota
	clockBreak               // a time in the prompt
	volatileBreak            // a short piece that is another one each time
	growingHead              // something is put into the head, in front of the history
	reasoningBreak           // thinking that was there, or was generated, is left out
	replyBreak               // the reply comes back changed
	reorderedBreak           // the same bytes in another order: JSON written anew
	shortenedBreak           // a part of the history is gone
	insertedBreak            // something was put into the middle of the history
	editedBreak              // a longer piece was replaced
	rewrittenBreak           // nothing behind the break comes back
	breakKinds     = int(rewrittenBreak) + 1
)

// maxVolatile is the longest piece, in bytes, that is called volatile.
const maxVolatile = 512

// maxGlue is how much a template may put around a reply, in bytes.
const maxGlue = 64

// breakAt is where two prompts part, and where they meet again.
type breakAt struct {
	kind       breakKind
	at         int // bytes of the common prefix
	before     int // length of what differs, in the earlier text
	after      int // … in the later one
	resumes    int // bytes that are the same again behind it
	seg        segKind
	resolution string
}

// explain says how cur's prompt departs from prev's prompt and reply.
func explain(prev, cur *turn) *breakAt {
	n := common(prev.text, cur.text)
	if n == len(prev.text) {
		return explainReply(prev, cur, n)
	}
	for n > 0 && !utf8.RuneStart(cur.text[min(n, len(cur.text)-1)]) {
		n--
	}
	b := &breakAt{at: n, seg: segAt(prev.segs, n)}
	a, c := prev.text[n:], cur.text[n:]
	if len(c) == 0 {
		b.kind, b.before = shortenedBreak, len(a)
		return b
	}
	if b.seg == segTools && sameBytes(prev, cur) {
		b.kind, b.resumes = reorderedBreak, min(len(a), len(c))
		return b
	}
	b.before, b.after, b.resumes = resume(a, c)
	if b.before == 0 {
		b.seg = segAt(cur.segs, n) // something new; it may stand where the earlier piece ended
	}
	head := b.seg == segTools || b.seg == segSystem || b.seg == segRaw && 2*b.resumes >= len(a)
	switch {
	case b.resumes == 0:
		b.kind = rewrittenBreak
	case isClock(cur.text, n, b.after, b):
		b.kind = clockBreak
	case b.before == 0 && head:
		b.kind = growingHead
	case removedReasoning(prev, n, b.before, b.after):
		b.kind, b.seg = reasoningBreak, segReasoning
	case b.after == 0:
		b.kind = shortenedBreak
	case b.before == 0:
		b.kind = insertedBreak
	case b.before <= maxVolatile && b.after <= maxVolatile:
		b.kind = volatileBreak
		b.widen(cur.text)
	default:
		b.kind = editedBreak
	}
	return b
}

// widen makes the piece that differs whole words: two random values may begin or end with the same characters.
func (b *breakAt) widen(text []byte) {
	for i := 0; i < maxGlue && b.at > 0 && isWord(text[b.at-1]); i++ {
		b.at--
		b.before++
		b.after++
	}
	for i := 0; i < maxGlue && b.at+b.after < len(text) && isWord(text[b.at+b.after]) && b.resumes > 0; i++ {
		b.before++
		b.after++
		b.resumes--
	}
}

func isWord(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// explainReply compares the reply with what the next prompt says in its place.
func explainReply(prev, cur *turn, n int) *breakAt {
	b := &breakAt{at: n}
	rest := cur.text[n:]
	if len(prev.reply) == 0 || len(rest) == 0 {
		return b
	}
	k := common(prev.reply, rest)
	if k == len(prev.reply) || isSpace(prev.reply[k:]) {
		return b
	}
	b.at, b.seg = n+k, segAt(prev.replySegs, k)
	after := 0
	for i, s := range prev.replySegs {
		if s.kind == segReasoning && after+s.len > k {
			// What was said after thinking stands where the thinking stood, or not at all.
			b.before = after + s.len - k
			if i+1 < len(prev.replySegs) && after <= len(rest) {
				b.resumes = common(prev.reply[after+s.len:], rest[after:])
			}
			b.kind, b.seg = reasoningBreak, segReasoning
			return b
		}
		if after > k {
			break
		}
		after += s.len
	}
	if end := bytes.Index(prev.reply[k:], thinkEnd); end >= 0 && (bytes.HasPrefix(trimSeparator(prev.reply[k:]), thinkBegin) || bytes.LastIndex(prev.reply[:k], thinkBegin) >= 0) {
		b.kind, b.seg, b.before = reasoningBreak, segReasoning, end+len(thinkEnd)
		said := bytes.TrimLeft(prev.reply[k+b.before:], "\n ")
		b.resumes = common(said, bytes.TrimLeft(trimSeparator(rest[k:]), "\n "))
		return b
	}
	b.before, b.after, b.resumes = resume(prev.reply[k:], rest[k:])
	if b.seg == segRaw && (b.resumes == 0 || b.before == 0 && b.after <= maxGlue) {
		return b // prompts logged as one text: what a template puts around a reply is no change, and some logs leave replies out
	}
	b.kind = replyBreak
	if b.resumes == 0 {
		b.before = len(prev.reply) - k
	}
	return b
}

var (
	thinkBegin = []byte("<think>")
	thinkEnd   = []byte("</think>")
)

func trimSeparator(b []byte) []byte { return bytes.TrimLeft(b, string(rune(separator))) }

// segAt returns the kind of the piece that holds position n.
func segAt(segs []seg, n int) segKind {
	k := segRaw
	for _, s := range segs {
		k = s.kind
		if n < s.len {
			break
		}
		n -= s.len
	}
	return k
}

// removedReasoning reports whether what is missing at n is thinking.
func removedReasoning(prev *turn, n, before, after int) bool {
	if before == 0 || after > before {
		return false
	}
	at := 0
	for _, s := range prev.segs {
		if s.kind == segReasoning && at < n+before && n < at+s.len {
			return true
		}
		at += s.len
	}
	gone := prev.text[n : n+before]
	return bytes.Contains(gone, thinkEnd) || bytes.HasPrefix(trimSeparator(gone), thinkBegin)
}

// sameBytes reports whether the tool definitions of both have the same bytes in another order.
func sameBytes(a, b *turn) bool {
	var n [2][256]int
	for i, t := range [...]*turn{a, b} {
		at := 0
		for _, s := range t.segs {
			if s.kind != segTools {
				break
			}
			for _, c := range t.text[at : at+s.len] {
				n[i][c]++
			}
			at += s.len
		}
	}
	return n[0] == n[1]
}

const (
	window = 32       // bytes that must agree for two texts to have met again
	reach  = 64 << 10 // how far behind the break they may meet
	closer = 4 << 10  // … if both texts have something in between
)

// resume finds where a and b, which differ in their first byte, agree again: a[i:] and b[j:] have the next n bytes
// in common. It looks for the shortest gap in a.
func resume(a, b []byte) (i, j, n int) {
	w := min(window, len(a), len(b))
	if w < 8 {
		return 0, 0, 0
	}
	meet := func(i, j int) (int, int, int) { return i, j, common(a[i:], b[j:]) }
	// Something was put in, or left out.
	if k := bytes.Index(b[:min(len(b), reach)], a[:w]); k >= 0 {
		return meet(0, k)
	}
	if k := bytes.Index(a[:min(len(a), reach)], b[:w]); k >= 0 {
		return meet(k, 0)
	}
	// A piece was replaced by one of the same length.
	for d := 1; d <= 64 && d+w <= len(a) && d+w <= len(b); d++ {
		if bytes.Equal(a[d:d+w], b[d:d+w]) {
			return meet(d, d)
		}
	}
	// Or of another one. Texts shorter than a window meet at their common end.
	at := make(map[uint64]int, 512)
	lim := min(len(b)-w, closer)
	var h uint64
	power := uint64(1)
	for range w - 1 {
		power *= prime
	}
	for k := 0; k <= lim; k++ {
		h = roll(h, b, k, w, power)
		if _, ok := at[h]; !ok {
			at[h] = k
		}
	}
	for k := 0; k <= min(len(a)-w, closer); k++ {
		h = roll(h, a, k, w, power)
		if m, ok := at[h]; ok && bytes.Equal(a[k:k+w], b[m:m+w]) {
			return meet(k, m)
		}
	}
	return 0, 0, 0
}

const prime = 1099511628211

// roll returns the hash of b[k:k+w], given that of the window before it.
func roll(h uint64, b []byte, k, w int, power uint64) uint64 {
	if k == 0 {
		h = 0
		for _, c := range b[:w] {
			h = h*prime + uint64(c) + 1
		}
		return h
	}
	return (h-(uint64(b[k-1])+1)*power)*prime + uint64(b[k+w-1]) + 1
}

// Times as people write them into prompts. Groups: date, time of day, seconds, fraction.
var clocks = []struct {
	re    *regexp.Regexp
	epoch string
}{
	{re: regexp.MustCompile(`(\d{4}[-/]\d{2}[-/]\d{2})(?:[T ,]{1,2}(\d{1,2}:\d{2})(:\d{2})?([.,]\d{1,9})?)?`)},
	{re: regexp.MustCompile(`((?:\d{1,2} )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?(?: \d{1,2})?(?:,? \d{4})?)(?:,?(?: at)? (\d{1,2}:\d{2})(:\d{2})?([.,]\d{1,9})?)?`)},
	{re: regexp.MustCompile(`()(\d{1,2}:\d{2})(:\d{2})?([.,]\d{1,9})?`)},
	{re: regexp.MustCompile(`()()\b1[5-9]\d{8}\b`), epoch: "second"},
	{re: regexp.MustCompile(`()()\b1[5-9]\d{11}\b`), epoch: "millisecond"},
	{re: regexp.MustCompile(`()()\b1[5-9]\d{14}\b`), epoch: "microsecond"},
}

// isClock reports whether the n bytes of text at at, which are new, are part of a time, and notes its resolution.
func isClock(text []byte, at, n int, b *breakAt) bool {
	if n == 0 || n > 64 {
		return false
	}
	from := max(0, at-40)
	around := text[from:min(len(text), at+n+40)]
	for _, c := range clocks {
		for _, m := range c.re.FindAllSubmatchIndex(around, -1) {
			if m[0]+from >= at+n || m[1]+from <= at {
				continue
			}
			switch {
			case c.epoch != "":
				b.resolution = c.epoch
			case m[8] >= 0 && m[9]-m[8] > 4:
				b.resolution = "microsecond"
			case m[8] >= 0:
				b.resolution = "millisecond"
			case m[6] >= 0:
				b.resolution = "second"
			case m[4] >= 0:
				b.resolution = "minute"
			default:
				b.resolution = "day"
			}
			// What changes may be less than what is written: a fraction that is always there counts.
			return true
		}
	}
	return false
}
