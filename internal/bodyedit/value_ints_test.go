package bodyedit

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAppendInts(t *testing.T) {
	t.Parallel()
	f := func(raw string, want []int32, wantOK bool) {
		t.Helper()
		got, ok := AppendInts([]int32{-1}, []byte(raw))
		if d := cmp.Diff(append([]int32{-1}, want...), got); d != "" || ok != wantOK {
			t.Errorf("AppendInts(%s) ok = %v, want %v (-want +got):\n%s", raw, ok, wantOK, d)
		}
	}
	f(`[]`, nil, true)
	f(`[ ]`, nil, true)
	f(`[1]`, []int32{1}, true)
	f("[1, 2,\n 3 , 2147483647]", []int32{1, 2, 3, 2147483647}, true)
	for _, bad := range []string{``, `[`, `null`, `{}`, `[1,]`, `[,1]`, `[1 2]`, `[-1]`, `[1.0]`, `[1e1]`, `["1"]`, `[[1]]`, `[2147483648]`, `[1,x]`} {
		f(bad, nil, false)
	}
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOf(rapid.Int32Min(0)).Draw(t, "ids")
		raw, err := json.MarshalIndent(want, rapid.StringOfN(rapid.RuneFrom([]rune(" \t\n\r")), 0, 3, -1).Draw(t, "prefix"), rapid.SampledFrom([]string{"", " "}).Draw(t, "indent"))
		if err != nil {
			t.Fatal(err)
		}
		got, ok := AppendInts([]int{}, raw)
		if !ok || len(got) != len(want) {
			t.Fatalf("AppendInts(%s) = %v, %v", raw, got, ok)
		}
		for i, n := range want {
			if got[i] != int(n) {
				t.Fatalf("AppendInts(%s) = %v", raw, got)
			}
		}
	})
}
