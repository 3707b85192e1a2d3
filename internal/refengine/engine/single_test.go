package engine

import (
	"testing"
	"testing/synctest"
)

// cold is what an engine without any reuse answers.
func cold(t testing.TB, prompt []int32, maxTokens int) []int32 {
	t.Helper()
	cfg := measured()
	cfg.PrefixCaching = false
	return startNode(t, newNetwork(), cfg).run(prompt, maxTokens, "").ids
}

func TestOneEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, newNetwork(), measured())
		prompt := ids(1, 600)
		a := n.run(prompt, 40, "")
		b := n.run(prompt, 40, "")
		equal(t, "reply of a warm engine", b.ids, a.ids)
		equal(t, "cached", []int{a.CachedTokens, b.CachedTokens, b.LocalHitTokens}, []int{0, 512, 512})
		equal(t, "finish", a.Finish, FinishLength)
		equal(t, "reply of a cold engine", cold(t, prompt, 40), a.ids)
		s := n.Snapshot()
		equal(t, "blocks", s.Blocks, BlockStats{Total: 199, Free: 199, Cached: 4})
	})
}
