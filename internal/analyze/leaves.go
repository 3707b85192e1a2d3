package analyze

import (
	"bytes"
	"slices"
)

// maxLeaves bounds how many contents one conversation keeps: adding one moves the others.
const maxLeaves = 1 << 13

// leaves holds the contents of earlier requests of one conversation such that the longest prefix that any of them
// shares with a new one can be found: in sorted order the best is a neighbour of where the new one belongs. A
// content that is the beginning of a later one is dropped, because the later one shares as much with any third.
type leaves struct {
	list   []leaf
	bytes  int
	budget int
	age    int64
	shed   bool // something was dropped for memory
}

type leaf struct {
	text []byte
	line int
	age  int64
}

func (l *leaves) reset() { l.list, l.bytes, l.age, l.shed = l.list[:0], 0, 0, false }

func (l *leaves) find(text []byte) int {
	i, _ := slices.BinarySearchFunc(l.list, text, func(a leaf, t []byte) int { return bytes.Compare(a.text, t) })
	return i
}

// best returns the longest common prefix of text with an earlier content, in bytes, and that one's line; the line
// is -1 if there is none.
func (l *leaves) best(text []byte) (n, line int) {
	i := l.find(text)
	n, line = 0, -1
	age := int64(-1)
	for k := max(0, i-1); k < min(len(l.list), i+1); k++ {
		if c := common(l.list[k].text, text); c > n || c == n && l.list[k].age > age {
			n, line, age = c, l.list[k].line, l.list[k].age
		}
	}
	return n, line
}

// add keeps a copy of text as belonging to line.
func (l *leaves) add(text []byte, line int) {
	l.age++
	i := l.find(text)
	if i < len(l.list) && bytes.HasPrefix(l.list[i].text, text) {
		l.list[i].age = l.age // covered by a longer one
		if len(l.list[i].text) == len(text) {
			l.list[i].line = line
		}
		return
	}
	if i > 0 && bytes.HasPrefix(text, l.list[i-1].text) {
		old := &l.list[i-1]
		l.bytes += len(text) - len(old.text)
		*old = leaf{append(old.text, text[len(old.text):]...), line, l.age}
		return
	}
	for len(l.list) > 0 && (l.bytes+len(text) > l.budget || len(l.list) >= maxLeaves) {
		oldest := 0
		for k := range l.list {
			if l.list[k].age < l.list[oldest].age {
				oldest = k
			}
		}
		l.bytes -= len(l.list[oldest].text)
		l.list = slices.Delete(l.list, oldest, oldest+1)
		if oldest < i {
			i--
		}
		l.shed = true
	}
	l.bytes += len(text)
	l.list = slices.Insert(l.list, i, leaf{bytes.Clone(text), line, l.age})
}
