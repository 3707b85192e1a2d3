package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets scripts run this program as `tarik`.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"tarik": func() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// TestScripts plays the command lines of testdata/script.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"start": startCmd, "interrupt": interruptCmd, "waitfor": waitFor, "ask": ask},
	})
}
