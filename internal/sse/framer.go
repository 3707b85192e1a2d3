package sse

import "bytes"

// DefaultMaxEventBytes is the limit of a zero [Framer]: 16 MiB. Tool-call arguments of several MiB on one
// line are real; at this size they are still looked into.
const DefaultMaxEventBytes = 16 << 20

// Framer cuts a byte stream into events. The zero value is ready for use.
//
//	f.Feed(chunk)
//	for ev, ok := f.Next(); ok; ev, ok = f.Next() { … }
//	// at the end of the stream:
//	ev, ok := f.Flush()
type Framer struct {
	// MaxEventBytes is the size in bytes above which an event is passed through in fragments.
	// 0 means DefaultMaxEventBytes. It bounds the memory of the Framer.
	MaxEventBytes int

	held []byte // the beginning of an event that is not complete, copied from earlier reads
	rest []byte // what Next has not looked at yet, the caller's memory
	out  bool   // held has been given out and is to be emptied
	over bool   // the current event is larger than the limit; its first bytes are out
	used bool   // an event has come out: no byte order mark any more
	scan scanner
}

// keptBytes is the buffer size above which Reset gives the memory back: one stream with huge events must not
// make a pooled Framer huge.
const keptBytes = 64 << 10

// Reset makes f ready for another stream. The limit and, within reason, the memory stay.
func (f *Framer) Reset() {
	held := f.held[:0]
	if cap(held) > keptBytes {
		held = nil
	}
	*f = Framer{MaxEventBytes: f.MaxEventBytes, held: held}
}

// Feed gives f the next bytes of the stream. Next must have returned false since the last call of Feed;
// chunk must stay unchanged until it does so again.
func (f *Framer) Feed(chunk []byte) {
	if len(f.rest) > 0 {
		panic("BUG: Feed before Next has returned false")
	}
	f.rest = chunk
}

// Next returns the next event, or false if the rest of what was fed is only the beginning of one.
func (f *Framer) Next() (Event, bool) {
	f.reuse()
	if len(f.rest) == 0 {
		return Event{}, false
	}
	n, complete := f.scan.next(f.rest)
	part := f.rest[:n:n]
	f.rest = f.rest[n:]
	size := len(f.held) + n
	switch {
	case f.over:
		f.over = !complete
		if n == 0 { // the event ended with the CR before these bytes
			return f.Next()
		}
		return Event{Raw: part, Partial: true}, true
	case size > f.limit():
		f.over = !complete
		f.used = true
		return Event{Raw: f.join(part), Partial: true}, true
	case complete:
		return f.event(f.join(part)), true
	}
	f.held = append(f.held, part...)
	return Event{}, false
}

// Flush returns what is left when the stream has ended: an event without its blank line, if there is one.
func (f *Framer) Flush() (Event, bool) {
	f.reuse()
	f.scan, f.over = scanner{}, false
	if len(f.held) == 0 {
		return Event{}, false
	}
	f.out = true
	return f.event(f.held), true
}

// HeldBytes is the number of bytes that f holds back because their event is not complete.
func (f *Framer) HeldBytes() int {
	if f.out {
		return 0
	}
	return len(f.held)
}

func (f *Framer) limit() int {
	if f.MaxEventBytes == 0 {
		return DefaultMaxEventBytes
	}
	return f.MaxEventBytes
}

// reuse empties the buffer whose content the last event was.
func (f *Framer) reuse() {
	if f.out {
		f.held, f.out = f.held[:0], false
	}
}

// join returns what is held and part as one piece.
func (f *Framer) join(part []byte) []byte {
	if len(f.held) == 0 {
		return part
	}
	f.held = append(f.held, part...)
	f.out = true
	return f.held
}

func (f *Framer) event(raw []byte) Event {
	body := raw
	if !f.used {
		f.used = true
		body = bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))
	}
	ev := Event{Raw: raw}
	ev.parse(len(raw) - len(body))
	return ev
}

// scanner finds where events end. It sees each byte once, however the stream is split.
type scanner struct {
	inLine bool // the current line has a byte in it
	cr     crState
	// loneCR: a CR without an LF behind it has been seen, so CR ends lines in this stream and a blank line
	// that ends with CR need not wait for the byte behind it.
	loneCR bool
}

// crState says what an LF at the beginning of the next bytes would belong to.
type crState uint8

const (
	crNone  crState = iota
	crLine          // the last byte was the CR of a line with content
	crBlank         // the last byte was the CR of a blank line: the event is complete but for an LF
)

// next returns how many bytes of p belong to the current event and whether that completes it. The count may
// be 0 for an event that was complete already, were it not for an LF that could have followed.
func (s *scanner) next(p []byte) (n int, complete bool) {
	i := 0
	for i < len(p) {
		c := p[i]
		if s.cr != crNone {
			was := s.cr
			s.cr = crNone
			if c == '\n' {
				i++
			} else {
				s.loneCR = true
			}
			if was == crBlank {
				return i, true
			}
			continue
		}
		if !s.inLine {
			switch c {
			case '\n':
				return i + 1, true
			case '\r':
				if s.loneCR {
					return i + 1, true
				}
				i++
				s.cr = crBlank
				continue
			}
			s.inLine = true
		}
		end := lineEnd(p[i:])
		if end < 0 {
			return len(p), false
		}
		i += end + 1
		s.inLine = false
		if p[i-1] == '\r' {
			s.cr = crLine
		}
	}
	return i, false
}

// lineEnd returns the position of the first LF or CR in p, -1 if there is none.
func lineEnd(p []byte) int {
	lf := bytes.IndexByte(p, '\n')
	if lf >= 0 {
		p = p[:lf]
	}
	if cr := bytes.IndexByte(p, '\r'); cr >= 0 {
		return cr
	}
	return lf
}
