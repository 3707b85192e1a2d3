package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"keys.yaml":  "keys:\n  - {tenant: acme, key_sha256: \"" + strings.Repeat("ab", 32) + "\"}\n",
		"salts.yaml": "secrets:\n  - {id: a, secret: \"" + strings.Repeat("A", 44) + "\"}\n",
		"d.key":      "sk-canary\n",
		"bad.yaml":   "keys:\n  - {tenant: acme, key: x}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lookup := func(name string) (string, bool) { return "sk-canary", name == "P_KEY" }
	f := func(text, want, wantErr string) {
		t.Helper()
		c, err := load(t, strings.ReplaceAll(text, "DIR", dir), flagValues{})
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		gotErr := ""
		if err := c.check(&out, lookup); err != nil {
			gotErr = strings.ReplaceAll(err.Error(), dir, "DIR")
		}
		got := strings.ReplaceAll(out.String(), dir, "DIR")
		if diff := cmp.Diff([]string{strings.TrimPrefix(want, "\n"), wantErr}, []string{got, gotErr}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
		if strings.Contains(got+gotErr, "canary") {
			t.Errorf("a secret shows:\n%s%s", got, gotErr)
		}
	}
	f(pair, `
clients    :8080, plain HTTP/1.1 and HTTP/2
operators  127.0.0.1:9091, plain HTTP/1.1 and HTTP/2
prefill    http://p:8000, with the client's Authorization
decode     http://d:8000, with the client's Authorization
reuse      on; decode keeps what it holds for 8m0s
tenants    anybody, as one; caches are shared
limits     requests of up to 64MiB, replies of up to 256MiB
receipts   the newest 4096, and no file
log        info, as text
stop       /health fails for 5s, then 30s for requests in progress
`, "")
	f(`
prefill: {url: http://p:8000, api_key: "${P_KEY}"}
decode: {url: http://d:8000, api_key_file: DIR/d.key}
admin: {address: ":9091"}
reuse: false
tenants:
  auth:
    - keys: {file: DIR/keys.yaml}
    - header: {name: X-Tenant, trusted_peers: [10.0.0.1, 10.1.0.0/16]}
    - none: true
  salts: {secrets_file: DIR/salts.yaml}
passthrough:
  - {path: /v1/embeddings, engine: decode}
  - {path: /v1/audio/, engine: any, methods: [POST, GET]}
receipts: {file: turns.jsonl, keep: 10}
log: {level: warn, format: json}
shutdown: {delay: 0s}
`, `
clients    :8080, plain HTTP/1.1 and HTTP/2
operators  :9091, plain HTTP/1.1 and HTTP/2
prefill    http://p:8000, with the engine's own key
decode     http://d:8000, with the engine's own key
reuse      off
tenants    keys in DIR/keys.yaml; the header X-Tenant of 10.0.0.1, 10.1.0.0/16; anybody without a credential; caches are apart
limits     requests of up to 64MiB, replies of up to 256MiB
passed on  POST /v1/embeddings to decode
passed on  POST, GET /v1/audio/ to any
receipts   the newest 10, and turns.jsonl
log        warn, as json
stop       /health fails for 0s, then 30s for requests in progress
warning    admin-open: anybody who reaches :9091 can see turns and metrics; set admin.allow, admin.tls.client_ca or a loopback address
warning    keys-unencrypted: clients send their credentials to :8080 in the clear; set listen.tls, or let something in front do it
`, "")
	// Everything that is wrong with the files, and nothing of what would run.
	f(`
listen: {tls: {cert: DIR/none.pem, key: DIR/none.key}}
prefill: {url: http://p:8000, api_key: "${OTHER}"}
decode: {url: https://d:8000, tls: {ca: DIR/d.key}}
tenants: {auth: [{keys: {file: DIR/bad.yaml}}]}
`, "", `listen.tls: read DIR/none.pem: no such file or directory
prefill: api_key: the environment variable OTHER is not set
decode: tls: DIR/d.key: holds no certificate; want PEM
tenants: auth[0]: DIR/bad.yaml:2:20: unknown field "key"`)
}
