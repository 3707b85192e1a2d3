package edge

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tarik-kv/tarik/internal/configfile"
	"github.com/tarik-kv/tarik/internal/tenant"
)

// complaints runs a Validate and returns what it says.
func complaints(validate func(Complain)) (list []string) {
	validate(func(path, message string) { list = append(list, path+": "+message) })
	return list
}

func TestValidateListen(t *testing.T) {
	t.Parallel()
	f := func(change func(*ListenConfig), want ...string) {
		t.Helper()
		c := DefaultListen(":8080")
		change(&c)
		if diff := cmp.Diff(want, complaints(c.Validate)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	f(func(*ListenConfig) {})
	for _, good := range []string{"127.0.0.1:0", "[::1]:8080", "host.name:1", ":65535"} {
		f(func(c *ListenConfig) { c.Address = good })
	}
	for _, bad := range []string{"", "8080", "host", ":", ":65536", ":-1", ":http", "http://host:1", "a b:1"} {
		f(func(c *ListenConfig) { c.Address = bad }, `address: "`+bad+`": want host:port or :port`)
	}
	f(func(c *ListenConfig) { c.Allow = []string{"10.0.0.0/8", "10.0.0.1/8", "x"} },
		`allow[1]: "10.0.0.1/8": has bits beyond its length; the network is 10.0.0.0/8`,
		`allow[2]: "x": want an address such as 10.1.2.3 or a network such as 10.0.0.0/8`)
	f(func(c *ListenConfig) { c.Allow = []string{} }, "allow: an empty list lets nobody in; leave it out to let everybody in")
	f(func(c *ListenConfig) {
		c.HeaderTimeout, c.BodyTimeout, c.ReplyTimeout, c.IdleTimeout = 0, -1, 0, 0
		c.HeaderBytes, c.Connections, c.Streams = 100, 0, tenant.Unlimited
	}, "header_timeout: 0s: want more than 0s", "body_timeout: -1ns: want more than 0s", "reply_timeout: 0s: want more than 0s", "idle_timeout: 0s: want more than 0s",
		"header_bytes: 100: want 4KiB to 16MiB", "connections: 0: want 1 or more, or unlimited", "streams: want 1 to 10000")
	f(func(c *ListenConfig) { c.Connections = tenant.Unlimited })
	f(func(c *ListenConfig) { c.TLS = &TLSConfig{} }, "tls.cert: missing: the file of the server's certificate", "tls.key: missing: the file of the certificate's private key")
	f(func(c *ListenConfig) {
		c.TLS = &TLSConfig{Cert: "c", Key: "k", ClientAuth: "optional", MinVersion: "1.1"}
	},
		"tls.client_auth: has no effect without client_ca", "tls.min_version: want 1.2 or 1.3")
	f(func(c *ListenConfig) { c.TLS = &TLSConfig{Cert: "c", Key: "k", ClientCA: "ca", ClientAuth: "maybe"} }, "tls.client_auth: want required or optional")
}

func TestValidateEngine(t *testing.T) {
	t.Parallel()
	f := func(c EngineConfig, authenticates bool, want ...string) {
		t.Helper()
		if c.URL == "" {
			c.URL = "https://p:8000/path"
		}
		got := complaints(func(complain Complain) { c.Validate(authenticates, complain) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.URL, diff)
		}
		if strings.Contains(strings.Join(got, ""), "canary") {
			t.Errorf("a complaint shows a secret: %s", got)
		}
	}
	key := configfile.NewSecret("canary")
	f(EngineConfig{}, true)
	f(EngineConfig{APIKey: key, TLS: &EngineTLSConfig{CA: "ca"}}, true)
	for _, bad := range []string{"p:8000", "ftp://p", "http://", "http://p?x=1", "http://p#x", "http://${HOST}:8000", "https:///x"} {
		f(EngineConfig{URL: bad}, true, "url: want a URL such as http://10.0.0.1:8000")
	}
	f(EngineConfig{URL: "http://user:canary@p"}, true, "url: has a user name or password in it; see api_key")
	f(EngineConfig{URL: "http://p", TLS: &EngineTLSConfig{CA: "ca"}}, true, "tls: has no effect: url is not https")
	f(EngineConfig{APIKey: key, APIKeyFile: "f"}, true, "api_key_file: contradicts api_key: want one of them")
	f(EngineConfig{Authorization: "keep"}, true, "authorization: want replace, pass or none")
	f(EngineConfig{Authorization: "replace"}, true, "authorization: replace needs api_key or api_key_file")
	f(EngineConfig{Authorization: "pass"}, true, "authorization: pass has no effect: the router authenticates its clients, and their credentials end there")
	f(EngineConfig{Authorization: "pass"}, false)
	f(EngineConfig{Authorization: "none", APIKeyFile: "f"}, false, "authorization: none contradicts api_key: the engine would not get it")
	f(EngineConfig{TLS: &EngineTLSConfig{Cert: "c"}}, false, "tls: cert and key need each other")
	f(EngineConfig{TLS: &EngineTLSConfig{}}, false, "tls: says nothing; leave it out for the system's CAs")
	none := EngineConfig{}
	if got := complaints(func(complain Complain) { none.Validate(false, complain) }); cmp.Diff([]string{"url: missing: where the engine listens, such as http://10.0.0.1:8000"}, got) != "" {
		t.Errorf("no URL: %q", got)
	}
}

func TestValidateShutdown(t *testing.T) {
	t.Parallel()
	if got := complaints(ShutdownConfig{}.Validate); got != nil {
		t.Errorf("no delay and no drain: %q", got)
	}
	if diff := cmp.Diff([]string{"delay: want 0s or more", "drain: want 0s or more"}, complaints(ShutdownConfig{-1, -1}.Validate)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestValidHeader(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"X-Conversation-Id": true, "thread-id": true, "x_own": true, "": false, "X Y": false, "X:": false, "Ü": false,
		"X-Tarik-Turn": false, "x-kv-source": false, "x_vllm_y": false,
	} {
		if got := ValidHeader(name); got != want {
			t.Errorf("ValidHeader(%q) = %v", name, got)
		}
	}
}
