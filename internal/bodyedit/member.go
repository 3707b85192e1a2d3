package bodyedit

import (
	"bytes"
	"iter"
)

// Span is a range of byte offsets in a document, half open.
type Span struct {
	Start, End int
}

// Len is the number of bytes in s.
func (s Span) Len() int { return s.End - s.Start }

// Member is one name and value of an object, as it stands in the text.
type Member struct {
	RawName []byte // between the quotes, still escaped
	Raw     []byte // the value, without white space around it
	Span    Span   // where Raw lies in the document
	nameAt  int    // offset of the opening quote of the name
}

// Is reports whether the member is called name, after unescaping.
func (m Member) Is(name string) bool { return nameIs(m.RawName, name) }

// IsFold is [Member.Is] without regard to case, including the letters outside ASCII that fold to one
// inside it (K as U+212A, s as U+017F): what a lenient JSON decoder downstream would accept as name.
func (m Member) IsFold(name string) bool { return nameIsFold(m.RawName, name) }

// Name is the unescaped name.
func (m Member) Name() string { return string(unescaped(m.RawName, nil)) }

func nameIs(raw []byte, name string) bool {
	if string(raw) == name {
		return true
	}
	if len(raw) <= len(name) || bytes.IndexByte(raw, '\\') < 0 { // an escape is longer than what it stands for
		return false
	}
	var room [64]byte
	return string(unescaped(raw, room[:0])) == name
}

func nameIsFold(raw []byte, name string) bool {
	var room [64]byte
	return bytes.EqualFold(unescaped(raw, room[:0]), append(make([]byte, 0, 64), name...))
}

// cursor walks the members of an object or the elements of an array in b.
type cursor struct {
	b     []byte
	i     int  // where the next member or element begins, or the closing bracket
	first bool // nothing has been read yet
}

// open returns a cursor on the container that begins at start.
func open(b []byte, start int) cursor {
	return cursor{b: b, i: skipSpace(b, start+1), first: true}
}

// more moves to the next item. It returns false at the end of the container and on malformed text, which
// cannot happen inside a scanned document.
func (c *cursor) more(end byte) bool {
	if c.i >= len(c.b) || c.b[c.i] == end {
		return false
	}
	if c.first {
		c.first = false
		return true
	}
	if c.b[c.i] != ',' {
		return false
	}
	c.i = skipSpace(c.b, c.i+1)
	return true
}

// member reads the member at the cursor.
func (c *cursor) member(m *Member) bool {
	if c.i >= len(c.b) || c.b[c.i] != '"' {
		return false
	}
	nameAt := c.i
	nameEnd, err := skipString(c.b, nameAt)
	if err != nil {
		return false
	}
	at, err := skipColon(c.b, nameEnd)
	if err != nil {
		return false
	}
	end, err := skipValue(c.b, at, 0)
	if err != nil {
		return false
	}
	*m = Member{
		RawName: c.b[nameAt+1 : nameEnd-1 : nameEnd-1],
		Raw:     c.b[at:end:end],
		Span:    Span{at, end},
		nameAt:  nameAt,
	}
	c.i = skipSpace(c.b, end)
	return true
}

// element reads the array element at the cursor.
func (c *cursor) element() (Span, bool) {
	at := c.i
	end, err := skipValue(c.b, at, 0)
	if err != nil {
		return Span{}, false
	}
	c.i = skipSpace(c.b, end)
	return Span{at, end}, true
}

// membersAt yields the members of the object that begins at start, nothing if there is none.
func membersAt(b []byte, start int) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		if start >= len(b) || b[start] != '{' {
			return
		}
		var m Member
		for c := open(b, start); c.more('}'); {
			if !c.member(&m) || !yield(m) {
				return
			}
		}
	}
}

// elementsAt yields the elements of the array that begins at start, nothing if there is none.
func elementsAt(b []byte, start int) iter.Seq[Span] {
	return func(yield func(Span) bool) {
		if start >= len(b) || b[start] != '[' {
			return
		}
		for c := open(b, start); c.more(']'); {
			sp, ok := c.element()
			if !ok || !yield(sp) {
				return
			}
		}
	}
}

// Members yields the members of the object raw in the order of the text, duplicates included, with spans
// relative to raw. It yields nothing if raw is not an object, and stops where raw is malformed; a value
// taken from a [Doc] is never malformed.
func Members(raw []byte) iter.Seq[Member] { return membersAt(raw, skipSpace(raw, 0)) }

// Elements yields the elements of the array raw, without white space around them. It yields nothing if
// raw is not an array, and stops where raw is malformed; a value taken from a [Doc] is never malformed.
func Elements(raw []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for sp := range elementsAt(raw, skipSpace(raw, 0)) {
			if !yield(raw[sp.Start:sp.End:sp.End]) {
				return
			}
		}
	}
}

// Objects is [Elements] that calls visit with each member of an element that is an object, before it yields that
// element. It reads the text once, which matters for messages of a megabyte.
func Objects(raw []byte, visit func(Member)) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		start := skipSpace(raw, 0)
		if start >= len(raw) || raw[start] != '[' {
			return
		}
		var m Member
		for c := open(raw, start); c.more(']'); {
			at := c.i
			if at < len(raw) && raw[at] == '{' {
				o := open(raw, at)
				for o.more('}') {
					if !o.member(&m) {
						return
					}
					visit(m)
				}
				if o.i >= len(raw) || raw[o.i] != '}' {
					return
				}
				c.i = o.i + 1
			} else if sp, ok := c.element(); ok {
				c.i = sp.End
			} else {
				return
			}
			end := c.i
			c.i = skipSpace(raw, end)
			if !yield(raw[at:end:end]) {
				return
			}
		}
	}
}

// Lookup returns the value of the last member of the object raw called name.
func Lookup(raw []byte, name string) ([]byte, bool) {
	var found []byte
	for m := range Members(raw) {
		if m.Is(name) {
			found = m.Raw
		}
	}
	return found, found != nil
}
