package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// startCmd runs tarik in the background with all it writes in the file NAME: start NAME ARG….
func startCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start NAME ARG…")
	}
	out, err := os.Create(ts.MkAbs(args[0]))
	ts.Check(err)
	path, err := exec.LookPath(filepath.Join(strings.SplitN(ts.Getenv("PATH"), string(os.PathListSeparator), 2)[0], "tarik"))
	ts.Check(err)
	c := exec.Command(path, args[1:]...)
	c.Dir, c.Stdout, c.Stderr = ts.Getenv("WORK"), out, out
	c.Env = append(os.Environ(), "PATH="+ts.Getenv("PATH"))
	ts.Check(c.Start())
	done := make(chan error, 1)
	go func() { done <- c.Wait(); close(done); _ = out.Close() }()
	background.Store(args[0]+"\x00"+ts.Getenv("WORK"), &running{c, done})
	ts.Defer(func() {
		_ = c.Process.Kill() // it may have ended
		<-done
	})
}

// running is a program started by start.
type running struct {
	cmd  *exec.Cmd
	done chan error
}

var background sync.Map // name and script → *running

// interruptCmd ends a program as Ctrl-C does and checks that it ends well: interrupt NAME.
func interruptCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: interrupt NAME")
	}
	v, ok := background.Load(args[0] + "\x00" + ts.Getenv("WORK"))
	if !ok {
		ts.Fatalf("%s was not started", args[0])
	}
	p := v.(*running)
	ts.Check(p.cmd.Process.Signal(os.Interrupt))
	select {
	case err := <-p.done:
		if err != nil {
			b, _ := os.ReadFile(ts.MkAbs(args[0])) // as much as there is
			ts.Fatalf("%s ended with %v:\n%s", args[0], err, b)
		}
	case <-time.After(20 * time.Second):
		ts.Fatalf("%s does not end", args[0])
	}
}

// waitFor waits until a file that a program in the background writes matches a pattern, and sets a
// variable to the pattern's first group: waitfor FILE NAME PATTERN.
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: waitfor FILE NAME PATTERN")
	}
	re, err := regexp.Compile("(?m)" + args[2])
	ts.Check(err)
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		if m := re.FindSubmatch(b); err == nil && m != nil {
			ts.Setenv(args[1], string(m[len(m)-1]))
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	ts.Fatalf("%s never matched %s", args[0], args[2])
}

// ask makes an HTTP request and writes "STATUS\nHEADERS\n\nBODY" to the file answer:
// ask [-key KEY] URL [BODY].
func ask(ts *testscript.TestScript, neg bool, args []string) {
	key := ""
	if len(args) > 2 && args[0] == "-key" {
		key, args = args[1], args[2:]
	}
	if len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: ask [-key KEY] URL [BODY]")
	}
	method, body := http.MethodGet, ""
	if len(args) == 2 {
		method, body = http.MethodPost, args[1]
	}
	req, err := http.NewRequest(method, args[0], strings.NewReader(body))
	ts.Check(err)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := http.DefaultClient.Do(req)
	if neg {
		if err == nil {
			_ = res.Body.Close()
			ts.Fatalf("%s answers", args[0])
		}
		return
	}
	ts.Check(err)
	defer res.Body.Close()
	var out bytes.Buffer
	fmt.Fprintln(&out, res.StatusCode)
	ts.Check(res.Header.Write(&out))
	fmt.Fprintln(&out)
	_, err = io.Copy(&out, res.Body)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("answer"), out.Bytes(), 0o600))
}
