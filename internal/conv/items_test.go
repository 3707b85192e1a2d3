package conv

import (
	"fmt"
	"strings"
	"testing"
)

func TestItems(t *testing.T) {
	t.Parallel()
	a, b := Scope{Tenant: "a"}, Scope{Tenant: "b"}
	s := NewItems(10_000)
	s.Put(a.ID("resp_1"), []byte(`{"x":1}`))
	if got, ok := s.Get(a.ID("resp_1")); !ok || string(got) != `{"x":1}` {
		t.Errorf("Get = %q, %v, want the items", got, ok)
	}
	if _, ok := s.Get(b.ID("resp_1")); ok {
		t.Error("another tenant's response is found by its id")
	}
	// The bound holds, and what was used last stays.
	for i := range 100 {
		s.Put(a.ID(fmt.Sprint(i)), []byte(strings.Repeat("x", 800)))
		if _, ok := s.Get(a.ID("resp_1")); !ok {
			t.Fatalf("the response in use is gone after %d others", i+1)
		}
	}
	if s.bytes > 10_000 || len(s.byID) != s.lru.Len() || len(s.byID) > 10 {
		t.Errorf("%d bytes in %d entries of %d listed, want at most 10000 bytes", s.bytes, len(s.byID), s.lru.Len())
	}
	// The same id again replaces; what can never fit is not taken.
	s.Put(a.ID("resp_1"), []byte("y"))
	s.Put(a.ID("huge"), make([]byte, 20_000))
	if got, _ := s.Get(a.ID("resp_1")); string(got) != "y" {
		t.Errorf("Get after a second Put = %q, want the new items", got)
	}
}
