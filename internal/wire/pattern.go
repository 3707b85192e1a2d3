package wire

import (
	"bytes"
	"strconv"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// pattern is the last ordinary chunk of a stream, cut at the two places where the next one may differ: the
// text and the token ids.
//
//	{"id":…,"choices":[{"delta":{"content":  "The"  },"finish_reason":null,"token_ids":  [504]  }],"kv_transfer_params":null}
//	└──────────────── head ─────────────┘    text   └──────────── middle ────────────┘    ids   └──────── tail ───────────┘
//
// A payload that consists of the same head, some well-formed string, the same middle, some list of ids and the
// same tail has the same structure as the parsed one, and everything the parser would find in it is known.
type pattern struct {
	known              bool
	head, middle, tail []byte
	outTail            []byte // what the client gets for tail
	hasIDs             bool
	part               int // of the reply, where the text belongs

	// Found by the parser in the current chunk, relative to its payload; empty if the chunk is not ordinary.
	text, ids bodyedit.Span

	said int // how many texts there are
	into int // the part of the last one
}

// reset forgets what was found in the chunk before.
func (p *pattern) reset() { p.text, p.ids, p.said = bodyedit.Span{}, bodyedit.Span{}, 0 }

// learn remembers data, whose edited form is out, if it is an ordinary chunk.
func (f *Filter) learn(data, out []byte) {
	p := &f.last
	text, ids, said, into := p.text, p.ids, p.said, p.into
	p.reset()
	if text.Len() == 0 || said != 1 {
		return
	}
	hasIDs := ids.Len() > 0
	cut := text.End // where the unknown part ends and outTail begins
	outIDs := 0
	if hasIDs {
		if ids.Start < text.End {
			return
		}
		cut = ids.End
		outIDs = ids.Len()
		if !f.opt.KeepTokenIDs {
			outIDs = len(null)
		}
	}
	fixed := text.End
	if hasIDs {
		fixed = ids.Start
	}
	// Edits in front of the ids are rare; such a stream is parsed chunk by chunk.
	if !bytes.HasPrefix(out, data[:fixed]) {
		return
	}
	p.head = append(p.head[:0], data[:text.Start]...)
	p.middle = append(p.middle[:0], data[text.End:fixed]...)
	p.tail = append(p.tail[:0], data[cut:]...)
	p.outTail = append(p.outTail[:0], out[fixed+outIDs:]...)
	p.hasIDs, p.part, p.known = hasIDs, into, true
}

// repeat handles an event whose payload, at offset at of raw, has the known pattern. It returns false if it
// has not.
func (f *Filter) repeat(raw []byte, at int, data []byte) (Action, []byte, bool) {
	p := &f.last
	if !bytes.HasPrefix(data, p.head) || !bytes.HasSuffix(data, p.tail) || len(data) < len(p.head)+len(p.tail) {
		return Pass, nil, false
	}
	end := bodyedit.StringEnd(data, len(p.head))
	if end < 0 || end == len(p.head)+len(`""`) || end > len(data)-len(p.tail) {
		return Pass, nil, false
	}
	hole := data[end : len(data)-len(p.tail)]
	if !bytes.HasPrefix(hole, p.middle) {
		return Pass, nil, false
	}
	hole = hole[len(p.middle):]
	switch {
	case !p.hasIDs:
		if len(hole) > 0 {
			return Pass, nil, false
		}
	case string(hole) != "null":
		ids, ok := bodyedit.AppendInts(f.info.TokenIDs, hole)
		if !ok {
			return Pass, nil, false
		}
		f.info.TokenIDs = ids
	}
	f.info.Content = true
	f.info.Reply.add(p.part, inside(data[len(p.head):end]))
	hidden := p.hasIDs && !f.opt.KeepTokenIDs && string(hole) != "null"
	if !hidden && len(p.tail) == len(p.outTail) {
		return Pass, raw, true
	}
	fixed := end + len(p.middle)
	if !hidden {
		fixed += len(hole)
	}
	out := append(f.out[:0], raw[:at+fixed]...)
	if hidden {
		out = append(out, "null"...)
	}
	out = append(out, p.outTail...)
	f.out = append(out, raw[at+len(data):]...)
	return Rewrite, f.out, true
}

// number is n as JSON.
func number(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }
