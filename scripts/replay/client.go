package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// request is the chat completion that is sent. Token ids are asked for, so that answers can be compared exactly.
type request struct {
	Model          string            `json:"model"`
	Messages       []json.RawMessage `json:"messages"`
	Tools          json.RawMessage   `json:"tools,omitempty"`
	MaxTokens      int               `json:"max_tokens"`
	Temperature    float64           `json:"temperature"` // 0: greedy
	ReturnTokenIDs bool              `json:"return_token_ids"`
	Stream         bool              `json:"stream,omitempty"`
	CacheSalt      string            `json:"cache_salt,omitempty"`
}

// answer is what came back.
type answer struct {
	Text      string
	PromptIDs []int32
	IDs       []int32
	Finish    string
	TurnID    string        // the router's X-Tarik-Turn, "" from an engine
	TTFT      time.Duration // to the first event or, not streamed, to the whole answer
}

// receipt is the part of a router's receipt that is looked at; docs/receipts.md describes all of it. Null counts
// mean that no engine said.
type receipt struct {
	Turn            string   `json:"turn"`
	Arm             string   `json:"arm"`
	Why             string   `json:"why"`
	PLocalTokens    *int     `json:"p_local_tokens"`
	PPulledTokens   *int     `json:"p_pulled_tokens"`
	PComputedTokens *int     `json:"p_computed_tokens"`
	DCachedTokens   *int     `json:"d_cached_tokens"`
	Prefill         string   `json:"prefill"`
	TTFTMillis      *float64 `json:"ttft_ms"`
}

// reused is the number of prompt tokens that did not have to be computed: by P, or by D if P had no part in the turn.
func (r *receipt) reused() int {
	if r.Prefill == "" {
		return count(r.DCachedTokens)
	}
	return count(r.PLocalTokens) + count(r.PPulledTokens)
}

func count(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// client talks to a router, its admin listener and an engine. It may be used by several goroutines.
type client struct {
	http    *http.Client
	timeout time.Duration // of one call
}

// chunk is an answer or one event of a streamed answer.
type chunk struct {
	PromptTokenIDs []int32 `json:"prompt_token_ids"`
	Choices        []struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		PromptTokenIDs []int32 `json:"prompt_token_ids"`
		TokenIDs       []int32 `json:"token_ids"`
		FinishReason   string  `json:"finish_reason"`
	} `json:"choices"`
	Error json.RawMessage `json:"error"`
}

// add appends what a chunk carries to the answer.
func (a *answer) add(data []byte) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("answer: %w: %.200q", err, data)
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return fmt.Errorf("answer: error %s", c.Error)
	}
	a.PromptIDs = append(a.PromptIDs, c.PromptTokenIDs...)
	for _, ch := range c.Choices {
		a.Text += ch.Message.Content + ch.Delta.Content
		a.PromptIDs = append(a.PromptIDs, ch.PromptTokenIDs...)
		a.IDs = append(a.IDs, ch.TokenIDs...)
		if ch.FinishReason != "" {
			a.Finish = ch.FinishReason
		}
	}
	return nil
}

// chat sends one request and reads the whole answer. An answer that does not end properly is an error.
func (c *client) chat(ctx context.Context, base string, r request, header http.Header) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false) // as clients send it
	if err := e.Encode(r); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", &body)
	if err != nil {
		return nil, err
	}
	req.Header = header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Content-Type", "application/json")
	begin := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return nil, fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(data))
	}
	a := &answer{TurnID: resp.Header.Get("X-Tarik-Turn")}
	if r.Stream {
		err = a.readStream(resp.Body, begin)
	} else {
		var data []byte
		if data, err = io.ReadAll(resp.Body); err == nil {
			a.TTFT = time.Since(begin)
			err = a.add(data)
		}
	}
	if err != nil {
		return nil, err
	}
	if a.Finish == "" {
		return nil, errors.New("answer without a finish_reason")
	}
	if len(a.PromptIDs) == 0 {
		return nil, errors.New("answer without prompt_token_ids, though return_token_ids was asked for")
	}
	return a, nil
}

// readStream reads server-sent events up to [DONE].
func (a *answer) readStream(r io.Reader, begin time.Time) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if data, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "data: "); ok {
			if a.TTFT == 0 {
				a.TTFT = time.Since(begin)
			}
			if data == "[DONE]" {
				return nil
			}
			if err := a.add([]byte(data)); err != nil {
				return err
			}
		}
		if err != nil {
			return fmt.Errorf("stream ended without [DONE]: %w", err)
		}
	}
}

// get reads a small JSON document.
func (c *client) get(ctx context.Context, address string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// model is the first model that the router or engine serves.
func (c *client) model(ctx context.Context, base string) (string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := c.get(ctx, base+"/v1/models", &list); err != nil {
		return "", err
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("%s/v1/models: no model", base)
	}
	return list.Data[0].ID, nil
}

// receipt returns the receipt of a turn. A receipt is written after the client's last byte, so it may take a moment.
func (c *client) receipt(ctx context.Context, admin, turnID string) (*receipt, error) {
	const attempts, pause = 100, 20 * time.Millisecond
	for range attempts {
		var list []receipt
		if err := c.get(ctx, admin+"/turns?turn="+url.QueryEscape(turnID), &list); err != nil {
			return nil, err
		}
		if len(list) == 1 && list[0].Turn == turnID {
			return &list[0], nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
	return nil, fmt.Errorf("no receipt of turn %s within %v", turnID, attempts*pause)
}

// uniqueSalt is a cache_salt that no other request has, so that nothing computed before can be reused.
func uniqueSalt() string {
	b := make([]byte, 12)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
