package api

import "errors"

// stream sends a reply as events: the headers, then what events sends, then [DONE] or an error.
func (s *Server) stream(out *output, events func() error) {
	if out.open() != nil {
		return
	}
	err := out.wait()
	if err == nil {
		err = events()
	}
	switch {
	case err == nil:
		_ = out.done() // the client is gone: nobody to tell
	case errors.Is(err, errOver), out.ctx.Err() != nil:
	default:
		_ = out.fail(s.engineError(err)) // the client is gone: nobody to tell
	}
}

// endStream sends what follows the last delta: the usage chunk, if it was asked for, and a chunk for the
// handle alone, if a fault puts it there. head is a chunk up to and with "choices":[.
func (s *Server) endStream(out *output, head []byte, q *common, u usage, chat bool, h *handlePlacer) error {
	if q.includeUsage {
		b := append([]byte(nil), head...)
		b = append(b, `],"usage":`...)
		b = s.appendFinalUsage(b, u, chat)
		b = append(b, `,"system_fingerprint":`...)
		b = appendString(b, s.fingerprint)
		if h.inUsage() {
			b = append(b, ',')
			b = appendParams(b, h.params)
		}
		if err := out.event(append(b, '}')); err != nil {
			return err
		}
	}
	if !h.inOwn() {
		return nil
	}
	b := append([]byte(nil), head...)
	b = append(b, `],`...)
	return out.event(append(appendParams(b, h.params), '}'))
}

// failWhole answers a request whose generation failed. Nothing is said to a client that has gone.
func (s *Server) failWhole(out *output, err error) {
	if out.ctx.Err() != nil {
		return
	}
	e := s.engineError(err)
	out.document(e.status, e.json())
}
