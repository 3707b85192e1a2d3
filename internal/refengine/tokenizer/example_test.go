package tokenizer_test

import (
	"encoding/json"
	"fmt"

	"github.com/tarik-kv/tarik/internal/refengine/tokenizer"
)

// A chat becomes a prompt, and the ids of a reply become text as they come.
func Example() {
	tok, template := tokenizer.Tiny()
	prompt, err := template.Render([]json.RawMessage{
		json.RawMessage(`{"role":"user","content":"Where is the river?"}`),
	}, nil, true, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%q\n", prompt)

	stream := tok.NewStream()
	for _, id := range tok.Encode(" It is near the road.<|im_end|>") {
		fmt.Printf("%q ", stream.Push(id))
	}
	fmt.Printf("%q\n", stream.Flush())
	// Output:
	// "<|im_start|>user\nWhere is the river?<|im_end|>\n<|im_start|>assistant\n"
	// " I" "t" " is" " near" " the" " road" "." "" ""
}

// Two generated line breaks are one token when their text is read back.
func ExampleTinyEmission() {
	tok, _ := tokenizer.Tiny()
	generated := append(tok.Encode("\n"), tok.Encode("\n")...)
	text := tok.Decode(generated, false)
	fmt.Println(len(generated), "generated,", len(tok.Encode(text)), "read back")
	// Output: 2 generated, 1 read back
}
