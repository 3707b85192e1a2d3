package bodyedit_test

import (
	"fmt"
	"io"
	"os"

	"github.com/tarik-kv/tarik/internal/bodyedit"
)

// One scan serves both legs of a turn: two edits of the same bytes.
func Example() {
	body := []byte(`{"model":"m", "stream": true, "messages":[{"role":"user","content":"<hi> & 0.10"}], "kv_transfer_params":{"forged":1}}`)
	doc, err := bodyedit.Scan(body)
	if err != nil {
		fmt.Println(err)
		return
	}

	prefill := doc.Edit()
	prefill.DeleteFold("kv_transfer_params")
	prefill.Set("stream", []byte("false"))
	prefill.Set("max_tokens", []byte("1"))

	decode := doc.Edit()
	decode.DeleteFold("kv_transfer_params")

	for _, e := range []*bodyedit.Edit{prefill, decode} {
		fmt.Print(e.Len(), " ")
		_, _ = io.Copy(os.Stdout, e.Reader())
		fmt.Println()
	}
	// Output:
	// 99 {"model":"m", "stream": false, "messages":[{"role":"user","content":"<hi> & 0.10"}],"max_tokens":1}
	// 83 {"model":"m", "stream": true, "messages":[{"role":"user","content":"<hi> & 0.10"}]}
}

// A path leads to a value anywhere in the document.
func ExampleEdit_Replace() {
	doc, err := bodyedit.Scan([]byte(`{"usage":{"prompt_tokens_details":{"cached_tokens":1251}}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	e := doc.Edit()
	if at, ok := doc.Path("usage", "prompt_tokens_details", "cached_tokens"); ok {
		e.Replace(at, []byte("600"))
	}
	fmt.Printf("%s\n", e.Bytes())
	// Output: {"usage":{"prompt_tokens_details":{"cached_tokens":600}}}
}
