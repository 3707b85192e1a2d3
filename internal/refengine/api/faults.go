package api

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// FaultHeader carries faults of one request, if Options.AllowFaultHeader: "name=value,name,…". The names
// are in ParseFaults.
const FaultHeader = "X-Refengine-Fault"

// HandlePlace is where a stream carries kv_transfer_params.
type HandlePlace string

// Places of the handle in a stream. Patched and older engines differ from what releases do. Streams of
// responses have it in the response of their last event, or of their first ones (HandleFirst); streams of
// messages have it nowhere, or on message_start (HandleFirst) or message_delta (HandleFinish, HandleUsage).
const (
	HandleDefault HandlePlace = ""       // as the release imitated: the finish chunk from 0.33 on, nowhere before
	HandleFinish  HandlePlace = "finish" // the chunk with finish_reason, whatever the release
	HandleFirst   HandlePlace = "first"  // the first content chunk; the whole stream waits for the end of generation
	HandleUsage   HandlePlace = "usage"  // the usage chunk; without one, a chunk of its own
	HandleOwn     HandlePlace = "own"    // a chunk without choices, after the usage chunk
	HandleNone    HandlePlace = "none"   // nowhere; the engine pins all the same
)

// Faults are wrong, slow or unusual behaviours of the HTTP surface. The zero value has none. Counts of
// events include every data event from the first on and exclude comments.
type Faults struct {
	Handle      HandlePlace   // where streams carry the handle
	NullParams  bool          // the engine retains nothing and the reply's params are null
	Status      int           // refuse with this HTTP status before the engine is asked; 0: no
	ErrorAt     int           // streams: the nth event is an error, then [DONE]; 0: no
	CutAt       int           // the socket is closed instead of the nth event, or half way through a whole reply; 0: no
	Comments    int           // streams: a comment before every nth event; 0: no
	KeepAlive   time.Duration // streams: a comment whenever nothing was sent for so long; 0: no
	Interval    int           // streams: so many engine outputs in one delta, the first alone; ≤ 1: no
	FinishError bool          // 200 with finish_reason "error", no tokens and no content member
	FirstDelay  time.Duration // wait before the first event, or before a whole reply
	Garbage     bool          // 200 with a body that is neither JSON nor SSE; the engine is not asked
	OneByte     bool          // every byte is its own write …
	ByteDelay   time.Duration // … and waits so long before the next
	CRLF        bool          // streams: lines end in CR LF
	NoSpace     bool          // streams: no space after "data:"
}

// ParseFaults adds the faults named in text to f:
//
//	handle=finish|first|usage|own|none   null-params   status=503
//	error-at=3   cut-at=3   comments=1   keep-alive=50ms   interval=4
//	finish-error   first-delay=200ms   garbage   one-byte[=1ms]   crlf   no-space
//
// An unknown name or a value that does not fit is an error, so that a test does not run without its fault.
func ParseFaults(f Faults, text string) (Faults, error) {
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		var err error
		switch name {
		case "":
		case "handle":
			f.Handle = HandlePlace(value)
			switch f.Handle {
			case HandleFinish, HandleFirst, HandleUsage, HandleOwn, HandleNone:
			default:
				err = fmt.Errorf("no such place %q", value)
			}
		case "null-params":
			f.NullParams, err = parseSwitch(value)
		case "status":
			f.Status, err = strconv.Atoi(value)
			if err == nil && (f.Status < 400 || f.Status > 599) {
				err = fmt.Errorf("status %d is not an error", f.Status)
			}
		case "error-at":
			f.ErrorAt, err = parseCount(value)
		case "cut-at":
			f.CutAt, err = parseCount(value)
		case "comments":
			f.Comments, err = parseCount(value)
		case "keep-alive":
			f.KeepAlive, err = time.ParseDuration(value)
		case "interval":
			f.Interval, err = parseCount(value)
		case "finish-error":
			f.FinishError, err = parseSwitch(value)
		case "first-delay":
			f.FirstDelay, err = time.ParseDuration(value)
		case "garbage":
			f.Garbage, err = parseSwitch(value)
		case "one-byte":
			f.OneByte = true
			if value != "" {
				f.ByteDelay, err = time.ParseDuration(value)
			}
		case "crlf":
			f.CRLF, err = parseSwitch(value)
		case "no-space":
			f.NoSpace, err = parseSwitch(value)
		default:
			err = fmt.Errorf("no such fault")
		}
		if err != nil {
			return f, fmt.Errorf("fault %q: %w", item, err)
		}
	}
	return f, nil
}

// fitMessages refuses faults that message streams cannot have.
func (f *Faults) fitMessages() *apiError {
	return f.refuse("/v1/messages", f.Handle == HandleOwn, f.FinishError)
}

// fitResponses refuses faults that responses cannot have.
func (f *Faults) fitResponses() *apiError {
	return f.refuse("/v1/responses", f.Handle == HandleOwn || f.Handle == HandleUsage, f.FinishError)
}

func (f *Faults) refuse(route string, handle, finishError bool) *apiError {
	switch {
	case handle:
		return badRequest(FaultHeader, "fault %q: not on %s", "handle="+string(f.Handle), route)
	case finishError:
		return badRequest(FaultHeader, "fault %q: not on %s", "finish-error", route)
	}
	return nil
}

func parseSwitch(value string) (bool, error) {
	if value == "" {
		return true, nil
	}
	return strconv.ParseBool(value)
}

func parseCount(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err == nil && n < 1 {
		err = fmt.Errorf("want 1 or more, have %d", n)
	}
	return n, err
}
