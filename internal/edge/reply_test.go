package edge

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sink is a ResponseWriter that keeps what it is told.
type sink struct {
	header http.Header
	said   []string
	quiet  bool
}

func (s *sink) Header() http.Header { return s.header }

func (s *sink) WriteHeader(status int) { s.said = append(s.said, http.StatusText(status)) }

func (s *sink) Write(b []byte) (int, error) {
	if !s.quiet {
		s.said = append(s.said, string(b))
	}
	return len(b), nil
}

func (s *sink) FlushError() error {
	if !s.quiet {
		s.said = append(s.said, "flush")
	}
	return nil
}

// Whose answer it is is settled once: by the first word of the handler, or by what replaced it before.
func TestReply(t *testing.T) {
	t.Parallel()
	no := &refusal{status: http.StatusTooManyRequests, code: "rate", message: "slow down"}
	const body = `{"error":{"message":"slow down","type":"RateLimitError","param":null,"code":"rate"}}`
	f := func(what string, handler func(*reply), wantBegun bool, want ...string) {
		t.Helper()
		s := &sink{header: http.Header{}}
		r := newReply(s, "/x", time.Minute, nil)
		handler(r)
		if got := r.end(); got != wantBegun {
			t.Errorf("%s: begun %v, want %v", what, got, wantBegun)
		}
		if diff := cmp.Diff(want, s.said); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if got := s.header.Get("X-Mine"); got != "" && len(want) > 1 && want[1] == body {
			t.Errorf("%s: the refusal has a header of the handler's answer", what)
		}
	}
	f("nothing", func(*reply) {}, false)
	f("an answer", func(r *reply) {
		r.WriteHeader(http.StatusContinue) // not an answer yet
		r.WriteHeader(http.StatusCreated)
		_, _ = r.Write([]byte("a"))
		r.Flush()
	}, true, "Continue", "Created", "a", "flush")
	f("a refusal before the handler's answer", func(r *reply) {
		r.Header().Set("X-Mine", "1")
		r.replace(no)
		r.replace(bug()) // the first one counts
		r.WriteHeader(http.StatusBadRequest)
		_, _ = r.Write([]byte("bad"))
		r.Flush()
	}, true, "Too Many Requests", body)
	f("a refusal and a handler that says nothing", func(r *reply) { r.replace(no) }, true, "Too Many Requests", body)
	f("a refusal that comes too late", func(r *reply) {
		_, _ = r.Write([]byte("a"))
		r.replace(no)
		_, _ = r.Write([]byte("b"))
	}, true, "a", "b")
}

// The chunk path allocates nothing of its own.
func TestReplyAllocations(t *testing.T) { // not parallel: it counts allocations
	r := newReply(&sink{header: http.Header{}, quiet: true}, "/x", time.Minute, nil)
	chunk := make([]byte, 235)
	if n := testing.AllocsPerRun(1000, func() {
		_, _ = r.Write(chunk)
		_ = r.FlushError()
	}); n != 0 {
		t.Errorf("a chunk allocates %v times, want 0", n)
	}
}

func BenchmarkReplyChunk(b *testing.B) {
	r := newReply(&sink{header: http.Header{}, quiet: true}, "/x", time.Minute, nil)
	chunk := make([]byte, 235)
	b.ReportAllocs()
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		_, _ = r.Write(chunk)
		_ = r.FlushError()
	}
}
