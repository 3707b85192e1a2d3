package bodyedit

import (
	"io"
	"slices"
)

// Edit is a set of changes to a [Doc]. The document and its bytes stay as they are; several edits of one
// document are independent.
//
// Changes act in the order in which they are made, each on what the ones before it have left. Where a
// change lies inside a value that another change removes or replaces, the outer one wins.
type Edit struct {
	d       *Doc
	objects []object // objects[0] is the outermost one
	patches []patch  // from Replace and InsertAfter
	segs    [][]byte // the result, valid if built
	size    int64
	built   bool

	sorted []patch  // memory of build
	spare  [][]byte // memory for the next segs; nil if a Reader may still use it
	room   struct { // first memory of objects and of what is appended to the outermost one
		objects  [1]object
		appended [6]member
	}
}

// patch replaces the bytes of at by with.
type patch struct {
	at   Span
	with []byte
}

// object holds the changes to the members of one object.
type object struct {
	at       Span
	slots    []slot
	own      []slot   // memory of slots, unless they are the document's
	touched  bool     // fates is in use
	fates    []fate   // per slot
	appended []member // new members, in order
}

// fate is what becomes of a member: kept, dropped, or its value replaced.
type fate struct {
	dropped bool
	value   []byte // nil if kept
}

type member struct {
	name  string
	value []byte
}

// Edit returns an empty set of changes.
func (d *Doc) Edit() *Edit {
	e := &Edit{d: d}
	e.room.objects[0] = object{at: d.root, slots: d.members, appended: e.room.appended[:0]}
	e.objects = e.room.objects[:]
	return e
}

// Reset makes e an empty set of changes to d that uses the memory of e again. Readers of e before must not be
// used any more. It is meant for streams, where a chunk must not cost an allocation.
func (e *Edit) Reset(d *Doc) {
	e.d, e.built = d, false
	e.patches, e.objects = e.patches[:0], e.objects[:0]
	e.spare = e.segs[:0]
	e.push(d.root).slots = d.members
}

// push appends an object whose memory, if it was used before, is used again.
func (e *Edit) push(at Span) *object {
	if k := len(e.objects); k < cap(e.objects) {
		e.objects = e.objects[:k+1]
		o := &e.objects[k]
		*o = object{at: at, own: o.own[:0], fates: o.fates[:0], appended: o.appended[:0]}
		return o
	}
	e.objects = append(e.objects, object{at: at})
	return &e.objects[len(e.objects)-1]
}

// Doc is the document that e changes.
func (e *Edit) Doc() *Doc { return e.d }

// Delete removes every member of the outermost object that has one of names, with the comma and the white
// space that belong to it, and returns how many there were.
func (e *Edit) Delete(names ...string) int { return e.remove(0, nameIs, names) }

// DeleteFold is [Edit.Delete] without regard to case. It is meant for members that must not reach an
// engine under any spelling.
func (e *Edit) DeleteFold(names ...string) int { return e.remove(0, nameIsFold, names) }

// Set gives every member called name the value, or appends such a member to the outermost object.
//
// value must be one JSON value; it is kept, not copied.
func (e *Edit) Set(name string, value []byte) { e.set(0, name, value) }

// DeleteMember is [Edit.Delete] on the object at obj, which must be the span of a value of this document.
// It does nothing if the value there is not an object.
func (e *Edit) DeleteMember(obj Span, names ...string) int {
	if k := e.object(obj); k >= 0 {
		return e.remove(k, nameIs, names)
	}
	return 0
}

// SetMember is [Edit.Set] on the object at obj, which must be the span of a value of this document.
// It does nothing if the value there is not an object.
func (e *Edit) SetMember(obj Span, name string, value []byte) {
	if k := e.object(obj); k >= 0 {
		e.set(k, name, value)
	}
}

// Replace puts with in the place of the bytes at sp, which must be the span of a value of this document,
// at any depth. Two spans that overlap must lie one in the other.
func (e *Edit) Replace(sp Span, with []byte) {
	if sp.Start < 0 || sp.End < sp.Start || sp.End > len(e.d.body) {
		panic("BUG: Replace outside the document")
	}
	e.built = false
	for k := range e.patches {
		if e.patches[k].at == sp {
			e.patches[k].with = with
			return
		}
	}
	e.patches = append(e.patches, patch{sp, with})
}

// InsertAfter puts text directly behind the value at sp, which must be the span of a value of this document.
// To add a member behind another one, text is a comma, a name, a colon and a value.
func (e *Edit) InsertAfter(sp Span, text []byte) {
	if sp.Start < 0 || sp.End < sp.Start || sp.End > len(e.d.body) {
		panic("BUG: InsertAfter outside the document")
	}
	e.built = false
	e.patches = append(e.patches, patch{Span{sp.End, sp.End}, text})
}

// object returns the index of the changes to the object at obj, -1 if the value there is something else.
func (e *Edit) object(obj Span) int {
	for k := range e.objects {
		if e.objects[k].at == obj {
			return k
		}
	}
	if obj.Start < 0 || obj.End > len(e.d.body) || obj.Len() < 2 || e.d.body[obj.Start] != '{' {
		return -1
	}
	o := e.push(obj)
	for m := range e.d.MembersOf(obj) {
		o.own = append(o.own, slot{name: Span{m.nameAt, m.nameAt + len(m.RawName) + 2}, val: m.Span})
	}
	o.slots = o.own
	return len(e.objects) - 1
}

func (e *Edit) remove(k int, is func([]byte, string) bool, names []string) int {
	e.built = false
	o := &e.objects[k]
	n := 0
	sameLength := k == 0 && e.d.sameLength(names)
	var appended []byte
	for _, name := range names {
		for i := range o.slots {
			raw := o.rawName(e.d.body, i)
			if sameLength && differ(raw, name) || o.dropped(i) || !is(raw, name) {
				continue
			}
			o.fate(i).dropped = true
			n++
		}
		if len(o.appended) == 0 {
			continue
		}
		before := len(o.appended)
		o.appended = slices.DeleteFunc(o.appended, func(m member) bool {
			appended = append(appended[:0], m.name...)
			return is(appended, name)
		})
		n += before - len(o.appended)
	}
	return n
}

func (e *Edit) set(k int, name string, value []byte) {
	if len(value) == 0 {
		panic("BUG: Set without a value")
	}
	e.built = false
	o := &e.objects[k]
	found := false
	for i := range o.slots {
		if !o.dropped(i) && nameIs(o.rawName(e.d.body, i), name) {
			o.fate(i).value = value
			found = true
		}
	}
	for i := range o.appended {
		if o.appended[i].name == name {
			o.appended[i].value = value
			found = true
		}
	}
	if !found {
		o.appended = append(o.appended, member{name, value})
	}
}

func (o *object) rawName(body []byte, i int) []byte {
	return body[o.slots[i].name.Start+1 : o.slots[i].name.End-1]
}

func (o *object) dropped(i int) bool { return o.touched && o.fates[i].dropped }

func (o *object) fate(i int) *fate {
	if !o.touched {
		o.touched = true
		o.fates = slices.Grow(o.fates[:0], len(o.slots))[:len(o.slots)]
		clear(o.fates)
	}
	return &o.fates[i]
}

// compile appends the patches that the changes to o amount to, in ascending order.
func (o *object) compile(to []patch) []patch {
	tail := o.tail()
	end := -1 // where the value of the last kept member ends
	for i := 0; i < len(o.slots); {
		if !o.dropped(i) {
			if o.touched && o.fates[i].value != nil {
				to = append(to, patch{o.slots[i].val, o.fates[i].value})
			}
			end = o.slots[i].val.End
			i++
			continue
		}
		run := i
		for i < len(o.slots) && o.dropped(i) {
			i++
		}
		// A run of dropped members goes with the comma behind it, or else with the one in front of it.
		switch first, last := o.slots[run], o.slots[i-1]; {
		case i < len(o.slots):
			to = append(to, patch{Span{first.name.Start, o.slots[i].name.Start}, nil})
		case end >= 0:
			return append(to, patch{Span{end, last.val.End}, tail})
		case len(tail) > 0:
			return append(to, patch{Span{first.name.Start, last.val.End}, tail[1:]})
		default:
			return append(to, patch{Span{first.name.Start, last.val.End}, nil})
		}
	}
	switch {
	case len(tail) == 0:
	case end >= 0:
		to = append(to, patch{Span{end, end}, tail})
	default:
		to = append(to, patch{Span{o.at.Start + 1, o.at.Start + 1}, tail[1:]})
	}
	return to
}

// tail is the text of the appended members, each with a comma in front.
func (o *object) tail() []byte {
	if len(o.appended) == 0 {
		return nil
	}
	n := 0
	for _, m := range o.appended {
		n += len(m.name) + len(m.value) + 4
	}
	text := make([]byte, 0, n)
	for _, m := range o.appended {
		text = append(text, ',')
		text = AppendString(text, m.name)
		text = append(text, ':')
		text = append(text, m.value...)
	}
	return text
}

// build turns the changes into segments.
func (e *Edit) build() {
	if e.built {
		return
	}
	patches := append(slices.Grow(e.sorted[:0], len(e.patches)+8), e.patches...)
	for k := range e.objects {
		patches = e.objects[k].compile(patches)
	}
	e.sorted = patches
	slices.SortStableFunc(patches, func(a, b patch) int {
		if a.at.Start != b.at.Start {
			return a.at.Start - b.at.Start
		}
		if a.at.Len() == 0 || b.at.Len() == 0 {
			return a.at.Len() - b.at.Len() // an insertion stands in front of what is replaced
		}
		return b.at.Len() - a.at.Len() // the outer one first
	})
	e.segs, e.spare, e.size = slices.Grow(e.spare, 2*len(patches)+1), nil, 0
	pos := 0
	add := func(b []byte) {
		if len(b) > 0 {
			e.segs = append(e.segs, b)
			e.size += int64(len(b))
		}
	}
	for _, p := range patches {
		if p.at.Start < pos {
			if p.at.End > pos {
				panic("BUG: edits overlap")
			}
			continue // inside a value that is gone
		}
		add(e.d.body[pos:p.at.Start])
		add(p.with)
		pos = p.at.End
	}
	add(e.d.body[pos:])
	e.built = true
}

// Changed reports whether e changes anything.
func (e *Edit) Changed() bool {
	if len(e.patches) > 0 {
		return true
	}
	for k := range e.objects {
		if o := &e.objects[k]; o.touched || len(o.appended) > 0 {
			return true
		}
	}
	return false
}

// Len is the length of the result in bytes: the Content-Length.
func (e *Edit) Len() int64 {
	e.build()
	return e.size
}

// Bytes is the result in one piece: the body itself if nothing changed, else a copy.
func (e *Edit) Bytes() []byte {
	if !e.Changed() {
		return e.d.body
	}
	return e.AppendTo(make([]byte, 0, e.Len()))
}

// AppendTo appends the result to dst.
func (e *Edit) AppendTo(dst []byte) []byte {
	e.build()
	for _, s := range e.segs {
		dst = append(dst, s...)
	}
	return dst
}

// WriteTo writes the result to w. It implements [io.WriterTo].
func (e *Edit) WriteTo(w io.Writer) (int64, error) {
	e.build()
	r := Reader{segs: e.segs}
	return r.WriteTo(w)
}

// Segments is the result as pieces in order, none of them empty: parts of the document and what was put between
// them. Nobody may change them.
func (e *Edit) Segments() [][]byte {
	e.build()
	return e.segs
}

// Reader returns a new reader of the result. It does not copy the body and may be called again for every
// attempt to send it (http.Request.GetBody).
func (e *Edit) Reader() *Reader {
	e.build()
	return &Reader{segs: e.segs}
}

// Reader reads the result of an [Edit]. It implements [io.ReadCloser] and [io.WriterTo].
type Reader struct {
	segs [][]byte // what is left; shared with the edit, so never written
	off  int      // bytes of segs[0] that have been read
}

var (
	_ io.ReadCloser = (*Reader)(nil)
	_ io.WriterTo   = (*Reader)(nil)
	_ io.WriterTo   = (*Edit)(nil)
)

// Read implements [io.Reader].
func (r *Reader) Read(p []byte) (int, error) {
	n := 0
	for len(r.segs) > 0 && n < len(p) {
		k := copy(p[n:], r.segs[0][r.off:])
		n += k
		r.advance(k)
	}
	if n == 0 && len(r.segs) == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo implements [io.WriterTo].
func (r *Reader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for len(r.segs) > 0 {
		rest := r.segs[0][r.off:]
		n, err := w.Write(rest)
		total += int64(n)
		r.advance(n)
		if err == nil && n < len(rest) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// Close implements [io.Closer]; there is nothing to close.
func (r *Reader) Close() error { return nil }

func (r *Reader) advance(n int) {
	if r.off += n; r.off == len(r.segs[0]) {
		r.segs, r.off = r.segs[1:], 0
	}
}
