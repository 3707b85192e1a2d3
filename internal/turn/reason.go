package turn

// Reason says why a turn went as it did. The names are stable: receipts, metrics and histories
// carry them.
type Reason string

// Why a turn is served by D alone.
const (
	SeveralReplies  Reason = "several-replies"   // n or best_of above 1
	SeveralPrompts  Reason = "several-prompts"   // a list of prompts
	PromptLogprobs  Reason = "prompt-logprobs"   // the whole prompt has to be computed by one engine
	Echo            Reason = "echo"              // the same
	PromptTruncated Reason = "prompt-truncated"  // the engine drops part of the prompt
	PromptEmbeds    Reason = "prompt-embeddings" // no token ids at all
	DecodeTight     Reason = "decode-tight"      // D would keep the reply's KV unseen, and has no room for more
	MediaContent    Reason = "media"             // ids do not describe the prompt
)

// Why a turn uses no handle.
const (
	FirstTurn        Reason = "first-turn"         // nothing is known of this conversation
	NoHandle         Reason = "no-handle"          // D returned none, or another turn has taken it
	HandleExpired    Reason = "handle-expired"     // D has let it go, or will before P could read it
	EngineRestarted  Reason = "engine-restarted"   // it names an earlier life of D
	CannotRender     Reason = "cannot-render"      // the engines cannot be asked for the prompt's ids
	ReuseOff         Reason = "reuse-off"          // by configuration
	PrefillUnproven  Reason = "prefill-unproven"   // P has not yet read a handle since it started
	PrefillDistrust  Reason = "prefill-distrusted" // P hung on a handle, or read nothing
	TakenByAnother   Reason = "taken-by-another"   // two turns at once: the other was faster
	NoCommonPrefix   Reason = "no-common-prefix"   // the prompt does not begin with what D holds
	HandleNotCutable Reason = "handle-not-cutable" // D's layout cannot be cut, and only a part agrees
)

// How a turn came by what P was prepared for, and what the prices decided.
const (
	ReturnReady  Reason = "return-ready"  // P has been prepared for this prompt since the last turn
	ReturnLate   Reason = "return-late"   // it was being prepared, and waiting longer did not pay
	Price        Reason = "price"         // another way is cheaper than using the handle
	StillWaiting Reason = "still-waiting" // the next turn came before the return could start
	Superseded   Reason = "superseded"    // the same turn was asked once more
	TooLate      Reason = "too-late"      // P had no time while it was worth anything
	NoRoom       Reason = "no-room"       // too many returns, or too long ones, wait already
	ReplyUnknown Reason = "reply-unknown" // it was too long, or in no form that could be said again
	Bug          Reason = "bug"           // of the router; its log has more
	TooLong      Reason = "too-long"      // what the next prompt begins with leaves no room in P
)

// How a turn with a handle, or a failed one, ended.
const (
	Verified         Reason = "verified"           // all that D holds is the prompt's beginning
	Cut              Reason = "cut"                // a part of it is
	PrefillHadIt     Reason = "prefill-had-it"     // P found as much in its own prefix cache
	BelowThreshold   Reason = "below-threshold"    // P found it not worth a transfer
	PullFailed       Reason = "pull-failed"        // P answered with an error; asked again without
	PullLate         Reason = "pull-late"          // P did not answer in time; asked again without
	PrefillLate      Reason = "prefill-late"       // P was too slow with a return that no handle was given to
	PrefillFailed    Reason = "prefill-failed"     // D computed everything itself
	PrefillKeptNone  Reason = "prefill-kept-none"  // P answered without params; D computed everything
	DecodeFailedOnce Reason = "decode-failed-once" // D failed on P's blocks and was asked again without
	ClientLeft       Reason = "client-left"
)
