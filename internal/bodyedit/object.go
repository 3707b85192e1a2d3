package bodyedit

import "iter"

// Doc is a scanned JSON object.
type Doc struct {
	body    []byte
	root    Span // from '{' to behind '}'
	members []slot
	simple  bool // the members' names are ASCII without escapes: as many bytes as what they stand for

	listName string // of the member whose elements are remembered, "" for none
	elements []element
	inner    []slot // the members of elements that are objects
}

// element is where an element of the list lies, and which of inner are its members.
type element struct {
	at           Span
	first, after int
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
	d := new(Doc)
	if err := d.Reset(body); err != nil {
		return nil, err
	}
	return d, nil
}

// ScanList is [Scan] that also remembers the elements of the array called name and their members, see [Doc.Listed]:
// looking for them afterwards means to read a megabyte of messages once more.
func ScanList(body []byte, name string) (*Doc, error) {
	room := &struct { // one piece of memory for a short conversation
		doc      Doc
		members  [16]slot
		elements [8]element
		inner    [16]slot
	}{}
	d := &room.doc
	d.listName, d.members, d.elements, d.inner = name, room.members[:0], room.elements[:0], room.inner[:0]
	if err := d.Reset(body); err != nil {
		return nil, err
	}
	return d, nil
}

// Reset is [Scan] into d, whose memory is used again. After an error d is empty.
func (d *Doc) Reset(body []byte) error {
	if d.members == nil {
		d.members = make([]slot, 0, 16)
	}
	d.body, d.root, d.members, d.elements, d.inner = body, Span{}, d.members[:0], d.elements[:0], d.inner[:0]
	d.simple = true
	err := d.scan()
	if err != nil {
		*d = Doc{members: d.members[:0], listName: d.listName}
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
		d.simple = d.simple && isSimple(b[s.name.Start:s.name.End])
		if d.listName != "" && nameIs(b[s.name.Start+1:s.name.End-1], d.listName) {
			i, err = d.scanList(i)
		} else {
			i, err = skipValue(b, i, 1)
		}
		if err != nil {
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

// scanList is skipValue for the value at i of the member whose elements are remembered. If there are several, the last
// one counts.
func (d *Doc) scanList(i int) (int, error) {
	b := d.body
	d.elements, d.inner = d.elements[:0], d.inner[:0]
	if i >= len(b) || b[i] != '[' {
		return skipValue(b, i, 1)
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == ']' {
		return i + 1, nil
	}
	for {
		e := element{at: Span{Start: i}, first: len(d.inner)}
		var err error
		if i < len(b) && b[i] == '{' {
			i, err = d.scanInner(i)
		} else {
			i, err = skipValue(b, i, 2)
		}
		if err != nil {
			return i, err
		}
		e.at.End, e.after = i, len(d.inner)
		d.elements = append(d.elements, e)
		var more bool
		if i, more, err = skipComma(b, i, ']'); !more {
			return i, err
		}
	}
}

// scanInner remembers the members of the object at i, an element of the list.
func (d *Doc) scanInner(i int) (int, error) {
	b := d.body
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1, nil
	}
	for {
		var s slot
		var err error
		s.name.Start = i
		if i, err = skipName(b, i); err != nil {
			return i, err
		}
		s.name.End, s.val.Start = nameEnd(b, i), i
		if i, err = skipValue(b, i, 3); err != nil {
			return i, err
		}
		s.val.End = i
		d.inner = append(d.inner, s)
		var more bool
		if i, more, err = skipComma(b, i, '}'); !more {
			return i, err
		}
	}
}

// skipComma moves from behind an item to the next, or behind the end of the container.
func skipComma(b []byte, i int, end byte) (at int, more bool, err error) {
	i = skipSpace(b, i)
	switch {
	case i >= len(b):
		return i, false, fail(i, reasonEnd)
	case b[i] == ',':
		return skipSpace(b, i+1), true, nil
	case b[i] == end:
		return i + 1, false, nil
	}
	return i, false, fail(i, reasonNext)
}

// ListLen is how many elements Listed yields.
func (d *Doc) ListLen() int { return len(d.elements) }

// Listed yields the elements of the array that [ScanList] was told to remember, nothing if there is none. Before it
// yields an element that is an object it calls visit with each of its members, as [Objects] does.
func (d *Doc) Listed(visit func(Member)) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, e := range d.elements {
			for _, s := range d.inner[e.first:e.after] {
				visit(d.member(s))
			}
			if !yield(d.Bytes(e.at)) {
				return
			}
		}
	}
}

// isSimple reports whether a name is ASCII without escapes.
func isSimple[T string | []byte](name T) bool {
	for i := range len(name) {
		if name[i] >= 0x80 || name[i] == '\\' {
			return false
		}
	}
	return true
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
func (d *Doc) At(i int) Member { return d.member(d.members[i]) }

func (d *Doc) member(s slot) Member {
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
		s := &d.members[i]
		raw := d.body[s.name.Start+1 : s.name.End-1]
		if string(raw) == name || !d.simple && nameIs(raw, name) {
			return d.At(i), true
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
	n, sameLength := 0, d.sameLength(names)
	for _, s := range d.members {
		raw := d.body[s.name.Start+1 : s.name.End-1]
		for _, name := range names {
			if !(sameLength && differ(raw, name)) && nameIsFold(raw, name) {
				n++
				break
			}
		}
	}
	return n
}

// sameLength reports whether a member of the outermost object that has one of names, without regard to case, is
// as long as that name: there are no escapes, and no letters outside ASCII that fold to one inside it.
func (d *Doc) sameLength(names []string) bool {
	if !d.simple {
		return false
	}
	for _, name := range names {
		if !isSimple(name) {
			return false
		}
	}
	return true
}

// differ reports, where sameLength holds, that two names are not the same, by a look at their lengths and first letters.
// Names that may be the same it leaves to nameIs and nameIsFold.
func differ(raw []byte, name string) bool {
	return len(raw) != len(name) || len(raw) > 0 && raw[0]|' ' != name[0]|' '
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
