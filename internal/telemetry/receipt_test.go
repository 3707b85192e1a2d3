package telemetry

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func turns(list []Receipt) (names []string) {
	for _, r := range list {
		names = append(names, r.Turn)
	}
	return names
}

// The ring keeps the newest, the writer gets all.
func TestReceipts(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	rs := NewReceipts(3, &out)
	for i := range 5 {
		rs.Add(Receipt{Turn: fmt.Sprint("t", i), Conversation: fmt.Sprint("c", i%2)})
	}
	if d := cmp.Diff([]string{"t4", "t3", "t2"}, turns(rs.Newest(10))); d != "" {
		t.Errorf("Newest (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"t4"}, turns(rs.Newest(1))); d != "" {
		t.Errorf("Newest(1) (-want +got):\n%s", d)
	}
	if _, ok := rs.Find("t1"); ok {
		t.Error("t1 is still there")
	}
	if r, ok := rs.Find("t3"); !ok || r.Turn != "t3" {
		t.Errorf("Find(t3) = %v, %v", r, ok)
	}
	if n := strings.Count(out.String(), "\n"); n != 5 {
		t.Errorf("%d lines written, want 5", n)
	}
	get := func(query string) (int, string) {
		w := httptest.NewRecorder()
		rs.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/turns?"+query, nil))
		return w.Code, w.Body.String()
	}
	if code, body := get("conversation=c0"); code != 200 || strings.Count(body, `"turn":`) != 2 {
		t.Errorf("conversation=c0: %d %s", code, body)
	}
	if code, body := get("turn=gone"); code != 200 || strings.TrimSpace(body) != "[]" {
		t.Errorf("turn=gone: %d %s, want an empty list", code, body)
	}
	if code, _ := get("n=-1"); code != 400 {
		t.Errorf("n=-1: %d", code)
	}
}

type full struct{ n int }

func (f *full) Write([]byte) (int, error) { f.n++; return 0, errors.New("disk full") }

// A writer that fails is not tried again, and the ring goes on.
func TestReceiptsWriterFails(t *testing.T) {
	t.Parallel()
	w := &full{}
	rs := NewReceipts(2, w)
	rs.Add(Receipt{Turn: "a"})
	rs.Add(Receipt{Turn: "b"})
	if rs.Err() == nil || w.n != 1 || len(rs.Newest(5)) != 2 {
		t.Errorf("Err() = %v after %d writes, %d kept; want an error after 1, 2 kept", rs.Err(), w.n, len(rs.Newest(5)))
	}
}

// Everything may be asked while turns end.
func TestReceiptsAtOnce(t *testing.T) {
	t.Parallel()
	rs := NewReceipts(50, nil)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 200 {
				rs.Add(Receipt{Turn: fmt.Sprint(i, j)})
				rs.Find(fmt.Sprint(i, j))
				rs.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/turns?n=2", nil))
			}
		})
	}
	wg.Wait()
	if n := len(rs.Newest(100)); n != 50 {
		t.Errorf("%d receipts kept, want 50", n)
	}
}
