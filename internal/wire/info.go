package wire

import (
	"github.com/tarik-kv/tarik/internal/bodyedit"
	"github.com/tarik-kv/tarik/internal/kvp"
)

// Options says what the client asked for, so that it gets that and no more.
type Options struct {
	Endpoint kvp.Endpoint

	KeepTokenIDs        bool // the client sent return_token_ids
	KeepPromptIDs       bool // the client sent return_token_ids
	KeepUsageChunk      bool // the client sent stream_options.include_usage
	KeepContinuousUsage bool // the client sent stream_options.continuous_usage_stats

	// CachedTokens replaces the number of cached prompt tokens wherever the reply reports one, if
	// OverrideCachedTokens is set. It is limited to the number of prompt tokens.
	OverrideCachedTokens bool
	CachedTokens         int

	// KeepReply is how many bytes of what the assistant says may be kept in Info.Reply, 0 for none. Of a reply
	// that says more, nothing is kept.
	KeepReply int

	// Fingerprint is the system_fingerprint of the engine as a raw JSON string, quotes included, as learned
	// from Info.Fingerprint of an earlier reply; nil if not known. It is put on the chunk with finish_reason
	// when the usage chunk is dropped that has it.
	Fingerprint []byte
}

// Usage is what a reply says about its tokens.
type Usage struct {
	PromptTokens     int  // all prompt tokens, cached ones included
	CompletionTokens int  // including the end-of-sequence token
	CachedTokens     int  // of the prompt; 0 if the engine does not say
	HasCachedTokens  bool // the engine says
}

// Info is what the router learns from a reply. PromptIDs, TokenIDs and Reply belong to the [Filter] and are
// valid until its Reset.
type Info struct {
	Handle  []byte // kv_transfer_params, an object, byte for byte; nil if none was seen
	Handles int    // number of objects seen: more than one if several choices each had theirs
	SeenKey bool   // the member kv_transfer_params was there, null or not

	PromptIDs []int32 // token ids of the prompt, if the engine sent them
	TokenIDs  []int32 // token ids of the reply's first choice, if the engine sent them
	Choices   int     // highest choice index seen, plus 1

	FinishReason string // of the first choice: stop, length, tool_calls, …; a status or stop_reason on other endpoints
	StopString   bool   // a stop string of the request ended the first choice: the engine keeps nothing then
	Finished     int    // number of choices with a finish reason

	Usage    Usage
	HasUsage bool

	Reply Reply // what the assistant said, if Options.KeepReply lets it be kept

	ID          string // id of the reply
	Fingerprint []byte // system_fingerprint, raw JSON string; nil if none was seen

	Content bool   // something of the answer was seen: the first token is out
	Error   []byte // the error object of the first error seen, raw; nil if none was seen
	Done    bool   // the stream said that it is complete

	Dropped     int // events kept from the client
	Uninspected int // events or fragments that were too large to look into
	Malformed   int // events whose payload was not a JSON object
}

// Failed reports whether the reply says that the generation failed, although the status may be 200.
func (in *Info) Failed() bool {
	return in.Error != nil || in.FinishReason == "error" || in.FinishReason == "failed"
}

// reset empties in for a reply with opt and keeps its memory.
func (in *Info) reset(opt *Options) {
	in.Reply.reset(opt)
	*in = Info{PromptIDs: in.PromptIDs[:0], TokenIDs: in.TokenIDs[:0], Reply: in.Reply}
}

// takeParams notes a kv_transfer_params value.
func (in *Info) takeParams(raw []byte) {
	in.SeenKey = true
	if bodyedit.KindOf(raw) == bodyedit.Object && len(raw) > len("{}") {
		in.Handles++
		in.Handle = append([]byte(nil), raw...)
	}
}

// takeError notes an error value.
func (in *Info) takeError(raw []byte) {
	if in.Error == nil && !bodyedit.IsNull(raw) {
		in.Error = append([]byte(nil), raw...)
		in.Reply.spoil()
	}
}

func (in *Info) takeID(raw []byte) {
	if in.ID == "" {
		in.ID, _ = bodyedit.String(raw)
	}
}

func (in *Info) takeFingerprint(raw []byte) {
	if in.Fingerprint == nil && bodyedit.KindOf(raw) == bodyedit.Text {
		in.Fingerprint = append([]byte(nil), raw...)
	}
}

func (in *Info) takeFinish(raw []byte, stop []byte) {
	if s, ok := word(raw); ok {
		in.FinishReason = s
		in.StopString = bodyedit.KindOf(stop) == bodyedit.Text
		if in.Failed() {
			in.Reply.spoil()
		}
	}
}

// word returns the content of the string raw without allocating for the usual ones.
func word(raw []byte) (string, bool) {
	for _, w := range words {
		if len(raw) == len(w)+2 && raw[0] == '"' && string(raw[1:len(raw)-1]) == w {
			return w, true
		}
	}
	return bodyedit.String(raw)
}

var words = [...]string{
	"stop", "length", "tool_calls", "abort", "error", "content_filter", // chat, completions
	"end_turn", "max_tokens", "tool_use", "stop_sequence", // messages
	"in_progress", "completed", "incomplete", "failed", // responses
}

// count returns the value of raw as a count of tokens.
func count(raw []byte) (int, bool) {
	n, ok := bodyedit.Int(raw)
	if !ok || n < 0 {
		return 0, false
	}
	return int(n), true
}
