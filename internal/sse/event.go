package sse

import (
	"bytes"
	"iter"
)

// Event is one event of a stream, or a fragment of one.
type Event struct {
	// Raw is the event as it was sent, with the line end behind each line and the blank line at the end.
	// The last event of a stream may lack them. A blank line or a comment by itself is an event, too.
	Raw []byte

	// Partial says that Raw is a piece of an event that is larger than the limit. The fields are unknown.
	Partial bool

	data  span // the value of the first data line
	name  span // the value of the last event line
	lines int  // number of data lines
	from  int  // where the first line begins: behind the byte order mark of a stream
}

// span is a range of offsets in Raw.
type span struct{ start, end int }

// HasData reports whether the event has a data line: comments and blank lines have none.
func (e *Event) HasData() bool { return e.lines > 0 }

// Name is the value of the event field, nil if there is none.
func (e *Event) Name() []byte { return e.Raw[e.name.start:e.name.end:e.name.end] }

// Data is the value of the data field. It is a view of Raw if there is one data line; several are joined
// with line feeds into new memory.
func (e *Event) Data() []byte {
	if e.lines <= 1 {
		return e.Raw[e.data.start:e.data.end:e.data.end]
	}
	var data []byte
	for line := range e.fields() {
		if string(line.name) == "data" {
			data = append(append(data, line.value...), '\n')
		}
	}
	return data[:len(data)-1]
}

// AppendWithData appends the event to dst with data in the place of its payload. All other fields stay as
// they are. If the event has one data line and data has no line feeds, no other byte changes.
func (e *Event) AppendWithData(dst, data []byte) []byte {
	if e.lines == 1 && e.Raw[e.data.start-1] != 'a' && bytes.IndexByte(data, '\n') < 0 {
		dst = append(dst, e.Raw[:e.data.start]...)
		dst = append(dst, data...)
		return append(dst, e.Raw[e.data.end:]...)
	}
	// One data line per line of data, where the first data line was.
	dst = append(dst, e.Raw[:e.from]...)
	written := false
	for line := range e.fields() {
		if string(line.name) != "data" {
			dst = append(dst, line.raw...)
			continue
		}
		if written {
			continue
		}
		written = true
		end := line.raw[len(line.raw)-line.endBytes:]
		if len(end) == 0 {
			end = []byte("\n")
		}
		for rest := data; ; {
			part, after, more := bytes.Cut(rest, []byte("\n"))
			dst = append(append(append(dst, "data: "...), part...), end...)
			if rest = after; !more {
				break
			}
		}
	}
	return dst
}

// DataOffset is where [Event.Data] begins in Raw, if the event has exactly one data line.
func (e *Event) DataOffset() (int, bool) { return e.data.start, e.lines == 1 }

// field is one line of an event.
type field struct {
	raw      []byte // with its line end
	endBytes int    // length of the line end: 0, 1 or 2
	name     []byte
	value    []byte
}

// fields yields the lines of the event.
func (e *Event) fields() iter.Seq[field] {
	return func(yield func(field) bool) {
		for at := e.from; at < len(e.Raw); {
			f, next := readField(e.Raw, at)
			if !yield(f) {
				return
			}
			at = next
		}
	}
}

// readField reads the line at from and returns it with the position behind its end.
func readField(raw []byte, from int) (f field, next int) {
	end := lineEnd(raw[from:])
	switch {
	case end < 0:
		end = len(raw)
		next = end
	case raw[from+end] == '\r' && from+end+1 < len(raw) && raw[from+end+1] == '\n':
		end += from
		next = end + 2
	default:
		end += from
		next = end + 1
	}
	line := raw[from:end]
	f = field{raw: raw[from:next], endBytes: next - end, name: line}
	if colon := bytes.IndexByte(line, ':'); colon >= 0 {
		f.name, f.value = line[:colon], line[colon+1:]
		if len(f.value) > 0 && f.value[0] == ' ' {
			f.value = f.value[1:]
		}
	}
	return f, next
}

// parse finds the fields of Raw, whose first line begins at from.
func (e *Event) parse(from int) {
	e.from = from
	for at := from; at < len(e.Raw); {
		f, next := readField(e.Raw, at)
		end := next - f.endBytes
		switch string(f.name) {
		case "data":
			if e.lines == 0 {
				e.data = span{end - len(f.value), end}
			}
			e.lines++
		case "event":
			e.name = span{end - len(f.value), end}
		}
		at = next
	}
}
