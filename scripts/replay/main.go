// Command replay plays agent conversations through a running router, turn after turn, and checks two things:
// what the router's receipts say was reused against what the text really repeats, and every answer against an
// engine that reuses nothing, token for token.
//
//	go run ./scripts/replay --reference http://127.0.0.1:8200 --conversations-dir test/conversations
//	go run ./scripts/replay --reference http://127.0.0.1:8200 --trace miniswe.jsonl.gz --conversations 20
//
// A trace is a file of JSON lines with timestamp (microseconds), input, output and session_id, as in LMCache's
// agent traces. The model's words in it are replaced by what the engine itself said, so that the text continues
// the way an agent's does. scripts/replay/up.sh starts a router and a reference engine and runs this.
//
// Repeated tokens are those at the front of a prompt, in whole blocks, that an earlier prompt of the conversation
// and its reply have in common with it. A turn that continues another (its messages begin with that turn's
// messages and whole reply) must reuse at least --min-reuse of them; other turns are measured and not judged.
// Conversations run one after the other unless --parallel is set; the turns of one never overlap.
//
// The exit status is 1 if a turn failed, reused too little or differed from the reference, 2 if nothing could be run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/tarik-kv/tarik/test/conversations"
)

type options struct {
	router, admin, reference string
	model                    string
	traces                   []string
	conversationsDir         string
	limits                   limits
	blockSize                int // tokens
	minReuse                 float64
	stream                   string
	parallel                 int
	sendIDs                  bool
	asJSON                   bool
	timeout                  time.Duration
}

func main() {
	code, err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
	}
	os.Exit(code)
}

func parse(args []string) (*options, error) {
	var o options
	f := flag.NewFlagSet("replay", flag.ContinueOnError)
	f.StringVar(&o.router, "router", "http://127.0.0.1:8080", "the router's base `URL`")
	f.StringVar(&o.admin, "admin", "http://127.0.0.1:9091", "`URL` of the router's admin listener, for receipts")
	f.StringVar(&o.reference, "reference", "", "`URL` of an engine with the same model to check answers against; empty: answers are not checked")
	f.StringVar(&o.model, "model", "", "model name to send; empty: the first the router lists")
	f.Func("trace", "`FILE` of a text trace, .jsonl or .jsonl.gz; may be repeated", func(s string) error {
		o.traces = append(o.traces, s)
		return nil
	})
	f.StringVar(&o.conversationsDir, "conversations-dir", "", "`DIR` of conversations, see test/conversations/README.md")
	f.IntVar(&o.limits.conversations, "conversations", 20, "at most this many of each trace or directory")
	f.IntVar(&o.limits.turns, "max-turns", 12, "at most this many turns of a conversation")
	f.IntVar(&o.limits.promptChars, "max-prompt-chars", 24000, "leave out a trace's requests that are longer, in bytes, replies not counted")
	f.IntVar(&o.limits.maxTokens, "max-tokens", 48, "reply length of a trace's turns; conversations of a directory say it themselves")
	f.IntVar(&o.blockSize, "block-size", 16, "tokens in a block of the engines' KV cache")
	f.Float64Var(&o.minReuse, "min-reuse", 0.95, "share of the repeated tokens that a continuing turn must reuse")
	f.StringVar(&o.stream, "stream", "alternate", "stream a trace's turns: never, always or alternate")
	f.IntVar(&o.parallel, "parallel", 1, "conversations at a time")
	f.BoolVar(&o.sendIDs, "send-ids", false, "send the conversation's name as x-conversation-id; a router must not need it")
	f.BoolVar(&o.asJSON, "json", false, "print one JSON document instead of a table")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "limit of one call")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case len(o.traces) == 0 && o.conversationsDir == "":
		return nil, errors.New("nothing to replay: give --trace or --conversations-dir")
	case o.blockSize < 1 || o.parallel < 1 || o.limits.maxTokens < 1 || o.limits.turns < 1:
		return nil, errors.New("--block-size, --parallel, --max-tokens and --max-turns are at least 1")
	case o.stream != "never" && o.stream != "always" && o.stream != "alternate":
		return nil, fmt.Errorf("--stream %q: never, always or alternate", o.stream)
	}
	return &o, nil
}

func (o *options) load() ([]conversations.Conversation, error) {
	var all []conversations.Conversation
	for _, name := range o.traces {
		cs, err := loadTrace(name, o.limits)
		if err != nil {
			return nil, err
		}
		for i := range cs {
			for k := range cs[i].Turns {
				cs[i].Turns[k].Stream = o.stream == "always" || o.stream == "alternate" && k%2 == 1
			}
		}
		all = append(all, cs...)
	}
	if o.conversationsDir != "" {
		cs, err := conversations.Load(os.DirFS(o.conversationsDir))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.conversationsDir, err)
		}
		cs = cs[:min(len(cs), o.limits.conversations)]
		for i := range cs {
			cs[i].Turns = cs[i].Turns[:min(len(cs[i].Turns), o.limits.turns)]
		}
		all = append(all, cs...)
	}
	return all, nil
}

// run plays everything and returns the exit status.
func run(args []string, out io.Writer) (int, error) {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	}
	if err != nil {
		return 2, err
	}
	all, err := o.load()
	if err != nil {
		return 2, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	p := &player{options: o, client: &client{http: &http.Client{}, timeout: o.timeout}}
	if o.model == "" {
		if o.model, err = p.client.model(ctx, o.router); err != nil {
			return 2, err
		}
	}

	results := make([]conversationResult, len(all))
	next := make(chan int)
	var workers sync.WaitGroup
	for range o.parallel {
		workers.Go(func() {
			for i := range next {
				results[i] = p.play(ctx, &all[i])
				if !o.asJSON {
					p.print(out, &results[i])
				}
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	workers.Wait()

	s := summarise(results, o)
	if o.asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		if err := e.Encode(map[string]any{"conversations": results, "summary": s}); err != nil {
			return 2, err
		}
	} else {
		s.print(out)
	}
	if !s.Passed {
		return 1, nil
	}
	return 0, nil
}
