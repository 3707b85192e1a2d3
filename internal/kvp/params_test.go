package kvp

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestForms(t *testing.T) {
	t.Parallel()
	const wantNull = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	if string(NullForm) != wantNull || string(AppendForm) != `{"do_remote_decode":true}` {
		t.Errorf("null form %s, append form %s", NullForm, AppendForm)
	}
}

func TestShapeOf(t *testing.T) {
	t.Parallel()
	f := func(raw string, want Shape) {
		t.Helper()
		if got := ShapeOf([]byte(raw)); got != want {
			t.Errorf("ShapeOf(%s) = %d, want %d", raw, got, want)
		}
	}
	f(``, ShapeNone)
	f(`null`, ShapeNone)
	f(`{}`, ShapeNone)
	f(`{ }`, ShapeNone)
	f(b639, ShapeDecode)
	f(aOf(b639), ShapePrefill)
	f(string(NullForm), ShapeDecode)
	f(string(AppendForm), ShapeDecode)
	f(`{"do_remote_prefill":true}`, ShapePrefill)
	f(`{"do_remote_prefill":true,"do_remote_decode":true}`, ShapeOther)
	f(`{"prompt_token_ids":[1]}`, ShapeOther) // an engine before 0.32 would pin blocks for ever
	f(`{"do_remote_decode":1}`, ShapeOther)
	f(`[]`, ShapeOther)
	f(`"x"`, ShapeOther)
}

func TestWithPromptTokenIDs(t *testing.T) {
	t.Parallel()
	if got, want := string(WithPromptTokenIDs(AppendForm, []int32{1, 22, 333})), `{"do_remote_decode":true,"prompt_token_ids":[1,22,333]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := string(WithPromptTokenIDs([]byte(with(b639, "prompt_token_ids", "[9]")), []int32{7})), with(b639, "prompt_token_ids", "[7]"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, params := range []string{``, `null`, `{}`, `{"x":1}`, `{"do_remote_decode":true`} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("WithPromptTokenIDs(%s) does not panic", params)
				}
			}()
			WithPromptTokenIDs([]byte(params), []int32{1})
		}()
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("WithPromptTokenIDs without ids does not panic")
			}
		}()
		WithPromptTokenIDs(NullForm, nil)
	}()
}

func TestEndpoint(t *testing.T) {
	t.Parallel()
	var got []string
	for _, e := range []Endpoint{Chat, Completions, Responses, Messages} {
		got = append(got, e.String()+" "+e.Path())
	}
	want := []string{"chat /v1/chat/completions", "completions /v1/completions", "responses /v1/responses", "messages /v1/messages"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}
