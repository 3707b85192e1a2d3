package local

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tarik-kv/tarik/internal/router"
	"github.com/tarik-kv/tarik/internal/telemetry"
)

// TestMain fails if anything that was started is still running at the end.
func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func startStack(t *testing.T, as string, back bool) *Stack {
	t.Helper()
	w, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	cfg := router.DefaultConfig()
	cfg.Receipts = telemetry.NewReceipts(100, nil)
	s, err := Up(context.Background(), w, StackOptions{
		Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", As: as, Return: back, Router: cfg, Engine: EngineOptions{KVTokens: 1 << 15},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// The demonstration shows the same replies with less computed, on every kind of wire: where streams
// carry no handle nothing is pulled, and nothing is wrong.
func TestDemo(t *testing.T) {
	t.Parallel()
	for as, pulls := range map[string]bool{"vllm-0.33": true, "vllm-0.32": false} {
		t.Run(as, func(t *testing.T) {
			t.Parallel()
			on, off := startStack(t, as, true), startStack(t, as, false)
			var out strings.Builder
			if err := Demo(context.Background(), &out, on, off, "tiny"); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			got := on.P.Core.Snapshot()
			if (got.PromptExternal > 1000) != pulls { // the probe pulls 200
				t.Errorf("P pulled %d tokens from D; pulls of the demonstration are expected: %v\n%s", got.PromptExternal, pulls, out.String())
			}
			if st := off.P.Core.Snapshot(); st.PromptExternal != 0 {
				t.Errorf("P pulled %d tokens with the return path off", st.PromptExternal)
			}
			for _, e := range []*Engine{on.P, on.D, off.P, off.D} {
				if err := e.Core.CheckAccounting(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for as, want := range map[string]string{
		"": "0.33.0", "vllm-0.33": "0.33.0", "0.32.0": "0.32.0", "vllm-0.25": "0.25.1", "vllm-0.21": "0.21.0",
	} {
		got, err := Version(as)
		if err != nil || got != want {
			t.Errorf("Version(%q) = %q, %v, want %q", as, got, err, want)
		}
	}
	for _, as := range []string{"vllm-0.20", "latest", "vllm-"} {
		if got, err := Version(as); err == nil && as != "vllm-" {
			t.Errorf("Version(%q) = %q, want an error", as, got)
		}
	}
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"no-such": "--model", t.TempDir(): "config.json"} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%q) = %v, want an error with %q", path, err, want)
		}
	}
}
