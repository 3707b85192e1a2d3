package router_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// F01: every byte that the router does not mean to change is the same on both legs.
func TestF01BytesStay(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"z":[`, 200) + strings.Repeat(`]}`, 200)
	odd := `"temperature" : 0.10,  "big":12345678901234567890,"huge":1e400,"neg":-0,"exp":1E+02,"t":"\u003cthink\u003e <&> \u2028 ` + "\u2028" + ` \/ é \ud83d\ude42 🙂",` + "\n\t" +
		`"dup":1,"dup":2,"zz":{"z":1,"a":2,"m":[ 1 , 2 ]},"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"z":{},"a":{"y":1,"b":2},"m":{}}}}}],"deep":` + deep + `,"null":null,"":0`
	messages := `"messages":[ {"content":"h\u0069 < > &","role":"user","x":[1.0,1e1]} ]`
	for _, tt := range []struct {
		name     string
		path     string
		in, p, d string // client's body, P's and D's
	}{
		{
			name: "chat streamed", path: chatPath,
			in: `{"model":"m",` + odd + `,` + messages + `,"stream":true,"max_tokens":50}`,
			p:  `{"model":"m",` + odd + `,` + messages + `,"stream":false,"max_tokens":1,"kv_transfer_params":NULL,"return_token_ids":true}`,
			d:  `{"model":"m",` + odd + `,` + messages + `,"stream":true,"max_tokens":50,"kv_transfer_params":A,"return_token_ids":true,"stream_options":{"include_usage":true}}`,
		},
		{
			name: "chat whole, with limits of every kind", path: chatPath,
			in: `{ "max_completion_tokens":7 ,"min_tokens":3, ` + messages + ` , "stream" : false , "stop":["a"],"n":1}  ` + "\n",
			p:  `{ ` + messages + ` , "stream" : false , "stop":["a"],"n":1,"kv_transfer_params":NULL,"max_tokens":1,"return_token_ids":true}  ` + "\n",
			d:  `{ "max_completion_tokens":7 ,"min_tokens":3, ` + messages + ` , "stream" : false , "stop":["a"],"n":1,"kv_transfer_params":A,"return_token_ids":true}  ` + "\n",
		},
		{
			name: "usage asked for, duplicates", path: chatPath,
			in: `{"stream":false,"stream":true,"stream_options":{ "x":0.10,"include_usage":false },` + messages + `,"max_tokens":1,"max_tokens":9,"return_token_ids":false}`,
			p:  `{"stream":false,"stream":false,` + messages + `,"max_tokens":1,"max_tokens":1,"kv_transfer_params":NULL,"return_token_ids":true}`,
			d:  `{"stream":false,"stream":true,"stream_options":{ "x":0.10,"include_usage":true },` + messages + `,"max_tokens":1,"max_tokens":9,"return_token_ids":true,"kv_transfer_params":A}`,
		},
		{
			name: "completions", path: textPath,
			in: `{"prompt":"h\u0069",` + odd + `}`,
			p:  `{"prompt":"h\u0069",` + odd + `,"kv_transfer_params":NULL,"stream":false,"max_tokens":1}`,
			d:  `{"prompt":"h\u0069",` + odd + `,"kv_transfer_params":A,"return_token_ids":true}`,
		},
		{
			name: "plain", path: chatPath,
			in: `{"n":2,` + messages + `,` + odd + `,"stream":true,"stream_options":{"include_usage":true}}`,
			d:  `{"n":2,` + messages + `,` + odd + `,"stream":true,"stream_options":{"include_usage":true}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			if h := g.post(t, tt.path, tt.in); h.status != 200 {
				t.Fatalf("HTTP %d %s", h.status, h.body)
			}
			a := params(true, "p-1", tokensOf(tt.in, tt.path), 0)
			if tt.path == chatPath { // P has told how it rendered the prompt, so that D need not
				a = strings.TrimSuffix(a, "}") + `,"prompt_token_ids":` + jsonOf(call{path: tt.path, body: tt.in}.fields().tokens()) + "}"
			}
			fill := strings.NewReplacer(
				":NULL", `:{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`,
				":A", ":"+a)
			var got, want []string
			for _, c := range append(g.p.generated(), g.d.generated()...) {
				if c.fields().param("remote_num_tokens") == "0" {
					continue // D is told that its handle is not kept: the router's own call
				}
				got = append(got, c.path+" "+c.body)
				if c.header.Get("Content-Length") != "" && c.header.Get("Content-Length") != fmt.Sprint(len(c.body)) {
					t.Errorf("Content-Length %s of %d bytes", c.header.Get("Content-Length"), len(c.body))
				}
			}
			for _, b := range []string{tt.p, tt.d} {
				if b != "" {
					want = append(want, tt.path+" "+fill.Replace(b))
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("what the engines were sent (-want +got):\n%s", d)
			}
		})
	}
}

func tokensOf(body, path string) int { return len(call{path: path, body: body}.fields().tokens()) }
