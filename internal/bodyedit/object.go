package bodyedit

import "iter"

// Doc is a scanned JSON object.
type Doc struct {
	body    []byte
	root    Span // from '{' to behind '}'
	members []slot
}

// slot is where a member of the outermost object lies.
type slot struct {
	name Span // with the quotes
	val  Span
}

// Scan checks that body is one well-formed JSON object and remembers where its members lie.
//
// The error is a [*SyntaxError] with the offset of the fault.
func Scan(body []byte) (*Doc, error) {
	d := &Doc{members: make([]slot, 0, 32)}
	if err := d.Reset(body); err != nil {
		return nil, err
	}
	return d, nil
}

// Reset is [Scan] into d, whose memory is used again. After an error d is empty.
func (d *Doc) Reset(body []byte) error {
	d.body, d.root, d.members = body, Span{}, d.members[:0]
	err := d.scan()
	if err != nil {
		*d = Doc{members: d.members[:0]}
	}
	return err
}

func (d *Doc) scan() error {
	b := d.body
	i := skipSpace(b, 0)
	if i >= len(b) {
		return fail(i, reasonEnd)
	}
	if b[i] != '{' {
		return fail(i, reasonObject)
	}
	d.root.Start = i
	i = skipSpace(b, i+1)
	for i < len(b) && b[i] != '}' || len(d.members) > 0 {
		var s slot
		var err error
		s.name.Start = i
		if i, err = skipName(b, i); err != nil {
			return err
		}
		s.val.Start = i
		// The name ends in front of the colon and the white space around it.
		s.name.End = nameEnd(b, i)
		if i, err = skipValue(b, i, 1); err != nil {
			return err
		}
		s.val.End = i
		d.members = append(d.members, s)
		i = skipSpace(b, i)
		if i >= len(b) {
			return fail(i, reasonEnd)
		}
		if b[i] == '}' {
			break
		}
		if b[i] != ',' {
			return fail(i, reasonNext)
		}
		i = skipSpace(b, i+1)
	}
	if i >= len(b) {
		return fail(i, reasonEnd)
	}
	d.root.End = i + 1
	if i = skipSpace(b, i+1); i < len(b) {
		return fail(i, reasonTrailing)
	}
	return nil
}

// nameEnd returns the position behind the closing quote of the member name in front of the value at i.
func nameEnd(b []byte, i int) int {
	for b[i-1] != '"' {
		i--
	}
	return i
}

// Body is the scanned text.
func (d *Doc) Body() []byte { return d.body }

// Root is the span of the outermost object, braces included.
func (d *Doc) Root() Span { return d.root }

// Count is the number of members of the outermost object, duplicates counted.
func (d *Doc) Count() int { return len(d.members) }

// At is the i-th member of the outermost object, 0 <= i < Count.
func (d *Doc) At(i int) Member {
	s := &d.members[i]
	return Member{
		RawName: d.body[s.name.Start+1 : s.name.End-1 : s.name.End-1],
		Raw:     d.body[s.val.Start:s.val.End:s.val.End],
		Span:    s.val,
		nameAt:  s.name.Start,
	}
}

// Members yields the members of the outermost object in the order of the text, duplicates included.
func (d *Doc) Members() iter.Seq[Member] {
	return func(yield func(Member) bool) {
		for i := range d.members {
			if !yield(d.At(i)) {
				return
			}
		}
	}
}

// Find returns the last member of the outermost object called name: the one that engines use.
func (d *Doc) Find(name string) (Member, bool) {
	for i := len(d.members) - 1; i >= 0; i-- {
		if m := d.At(i); m.Is(name) {
			return m, true
		}
	}
	return Member{}, false
}

// Get returns the value of the last member called name, nil if there is none.
func (d *Doc) Get(name string) []byte {
	m, _ := d.Find(name)
	return m.Raw
}

// Has reports whether any member of the outermost object is called name.
func (d *Doc) Has(name string) bool {
	_, ok := d.Find(name)
	return ok
}

// CountFold returns how many members of the outermost object are called one of names, without regard to case.
func (d *Doc) CountFold(names ...string) int {
	n := 0
	for m := range d.Members() {
		for _, name := range names {
			if m.IsFold(name) {
				n++
				break
			}
		}
	}
	return n
}

// Bytes is the text at sp.
func (d *Doc) Bytes(sp Span) []byte { return d.body[sp.Start:sp.End:sp.End] }

// MembersOf yields the members of the object at sp, nothing if the value there is something else.
func (d *Doc) MembersOf(sp Span) iter.Seq[Member] { return membersAt(d.body[:sp.End], sp.Start) }

// ElementsOf yields the spans of the elements of the array at sp, nothing if the value there is something else.
func (d *Doc) ElementsOf(sp Span) iter.Seq[Span] { return elementsAt(d.body[:sp.End], sp.Start) }

// Path follows names from the outermost object inwards, last occurrence each, and returns the span of the
// value that they lead to.
func (d *Doc) Path(names ...string) (Span, bool) {
	at := d.root
	for depth, name := range names {
		found := false
		if depth == 0 {
			var m Member
			if m, found = d.Find(name); found {
				at = m.Span
			}
		} else {
			for m := range d.MembersOf(at) {
				if m.Is(name) {
					at, found = m.Span, true
				}
			}
		}
		if !found {
			return Span{}, false
		}
	}
	return at, true
}
