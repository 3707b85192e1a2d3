package analyze

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// What clients wrote, and who they are, must not reach any output: not the report, not a message about a bad line,
// not a file on disk.
func TestNoTextInOutput(t *testing.T) {
	t.Parallel()
	const canary = "CANARY-7f3a"
	var log []any
	for i := range 6 {
		// Each turn breaks in another way, so that all patterns speak.
		system := []string{canary + " now 09:1" + fmt.Sprint(i), canary + " h=" + fmt.Sprint(i*7919), strings.Repeat(canary, i+1)}[i/2] + words(canary, 200)
		messages := []any{said("system", system)}
		for k := range i + 1 {
			messages = append(messages, said("user", canary+words(fmt.Sprint(canary, k), 20)), m{"role": "assistant", "reasoning": canary, "content": canary + fmt.Sprint(k*i)})
		}
		messages = append(messages, said("user", canary))
		log = append(log, chat("conv-"+canary, 1000+float64(i*700), messages, m{"role": "assistant", "reasoning": canary, "content": canary}, m{
			"user": canary, "metadata": m{"user_id": canary}, "tools": []any{m{"name": canary}},
		}))
		log[i].(m)["tenant"] = canary + fmt.Sprint(i%2)
		log[i].(m)["headers"] = m{"authorization": canary, "x-request-id": canary}
	}
	input := lines(t, log...) + strings.Join([]string{
		canary, `{"` + canary + `":"` + canary + `"}`, `{"ts":"` + canary + `","prompt_tokens":1,"conversation_id":"` + canary + `"}`,
		`{"prompt_tokens":"` + canary + `"}`, `{"x":"` + canary, `INFO Received request ` + canary + `: prompt: '` + canary,
		`{"conversation_id":1,"ts":1,"prompt_tokens":5,"model":"<script>alert('` + strings.Repeat("long", 99) + `')</script>"}`,
	}, "\n")
	dir := t.TempDir()
	r := report(t, input, func(o *Options) { o.spillAt, o.TempDir = 3000, dir })
	if r.Input.Spilled == 0 || len(r.Findings) < 2 || len(r.Input.Bad) < 3 {
		t.Fatalf("spilled %d, findings %v, bad %v: the test shows nothing", r.Input.Spilled, codes(r), r.Input.Bad)
	}
	var text, page bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for name, out := range map[string]string{"text": text.String(), "HTML": page.String(), "JSON": string(data)} {
		if i := strings.Index(out, canary); i >= 0 {
			t.Errorf("%s holds the canary: …%s…", name, out[max(0, i-60):min(len(out), i+60)])
		}
		if strings.Contains(out, "alert('") || strings.Contains(out, "<script") {
			t.Errorf("%s holds a model's name as it was", name)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("files left in the temporary directory: %v, %v", entries, err)
	}
	if len(r.Tenants) == 0 || len(r.Tenants[0].Name) != 12 {
		t.Errorf("tenants = %+v, want salted hashes of twelve digits", r.Tenants)
	}
}

// Spilled rows are unreadable on disk, and their files have no name while they are there.
func TestSpilledRowsAreSealed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, err := newRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	secret := []byte(strings.Repeat("a secret prompt. ", 2000))
	var head [rowSize + 4]byte
	x := newRow()
	x.encode(head[:])
	head[rowSize], head[rowSize+1] = byte(len(secret)), byte(len(secret)>>8)
	for _, b := range [][]byte{head[:], secret} {
		if err := r.write(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.finish(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("names in the directory: %v, %v; want none", entries, err)
	}
	raw := make([]byte, r.size)
	if _, err := r.file.ReadAt(raw, 0); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, []byte("secret")) || bytes.HasPrefix(raw, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		t.Error("the file can be read")
	}
	if err := r.rewind(); err != nil {
		t.Fatal(err)
	}
	if ok, err := r.next(); !ok || err != nil || !bytes.Equal(r.content, secret) {
		t.Errorf("read back %v, %v, %d bytes; want the row", ok, err, len(r.content))
	}
}
