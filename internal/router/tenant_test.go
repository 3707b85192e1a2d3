package router_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tarik-kv/tarik/internal/tenant"
)

// as serves h to clients that say in a header who they are, as a gate in front would have found out.
func as(t testing.TB, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		id := tenant.Identity{Tenant: req.Header.Get("Tenant")}
		if m := req.Header.Get("Models"); m != "" {
			id.Models = strings.Split(m, ",")
		}
		h.ServeHTTP(w, req.WithContext(tenant.NewContext(req.Context(), id)))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// I4: the same words, the same conversation id, the same salt: a tenant gets nothing of another's.
func TestI4TenantsNeverMeet(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	url := as(t, g.router.Handler())
	say := func(who, body string) (h heard, salts [2]string, handle string) {
		t.Helper()
		g.p.says(good)
		g.d.says(good)
		h = do(t, http.MethodPost, url+chatPath, strings.NewReader(body), "Tenant", who, "Content-Type", "application/json", "X-Conversation-Id", "1")
		if h.status != 200 {
			t.Fatalf("HTTP %d %s", h.status, h.body)
		}
		p, d := g.p.generated()[0], g.d.generated()[0]
		for i, c := range []call{p, d} {
			_, after, _ := strings.Cut(c.body, `"cache_salt":"`)
			salts[i], _, _ = strings.Cut(after, `"`)
		}
		return h, salts, p.fields().param("remote_engine_id")
	}
	one, two := chat(true, long(200)), chat(true, long(200), "ok", "go on")
	_, acme, _ := say("acme", one)
	_, globex, _ := say("globex", one)
	if acme[0] == "" || acme[0] != acme[1] || globex[0] != globex[1] || acme[0] == globex[0] {
		t.Errorf("salts on P and D: acme %v, globex %v; want one each, the same on both legs", acme, globex)
	}
	// A third tenant goes on with acme's conversation: no handle.
	if h, _, handle := say("initech", two); handle != "null" || g.receipt(t, h).Why != "first-turn" {
		t.Errorf("another tenant was given a handle of %s", handle)
	}
	if h, _, handle := say("acme", two); handle == "null" {
		t.Errorf("acme's own handle was not used: %+v", g.receipt(t, h))
	}
	// What a client says about its salt separates its own users and nothing else.
	salted := strings.Replace(one, `{`, `{"cache_salt":"`+acme[0]+`",`, 1)
	if _, salts, _ := say("globex", salted); salts[0] == acme[0] || salts[0] == globex[0] {
		t.Errorf("a client chose its salt: %v", salts)
	}
}

func TestModelsOfACredential(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	url := as(t, g.router.Handler())
	for path, body := range map[string]string{
		chatPath:                    chat(false, "x"),
		messagesPath:                `{"model":"m","max_tokens":1,"messages":[]}`,
		"/tokenize":                 `{"model":"m","prompt":"x"}`,
		"/v1/messages/count_tokens": `{"model":"m","messages":[]}`,
	} {
		for models, want := range map[string]int{"n,o*": 403, "m": 200, "": 200} {
			h := do(t, http.MethodPost, url+path, strings.NewReader(body), "Tenant", "a", "Models", models, "Content-Type", "application/json")
			if fmt.Sprint(h.status)[0] != fmt.Sprint(want)[0] || want == 403 && h.status != 403 {
				t.Errorf("%s with models %q: HTTP %d %s, want %d", path, models, h.status, h.body, want)
			}
		}
	}
}
