package turn

import (
	"time"

	"github.com/tarik-kv/tarik/internal/kvp"
	"github.com/tarik-kv/tarik/internal/price"
)

// Event is something that happened to a turn.
type Event interface{ event() }

// Start begins a turn with what is known of it.
type Start struct {
	// Plain, if not empty, is why this request is served by D alone, without any params: its
	// prompt or its replies are not what a handle could describe.
	Plain Reason
	// Held is what D keeps of the turn that this one continues, nil if nothing.
	Held *kvp.Held
	// Guessed: Held is of a turn with the same name, not with the same beginning. It may be the main
	// line of an agent that asks something else by the way.
	Guessed bool
	// Without is why Held is nil.
	Without Reason
	// Await, if not 0, says that a return is preparing P for this turn at the moment, and how long it
	// pays to wait for it. The return has the handle: Held is nil.
	Await time.Duration
	// Arm is what the prices speak for. With ArmLocal a handle is given up; ArmAppend leaves P out;
	// anything else uses the handle if there is one.
	Arm Arm
	// AppendKeepsNone: D could not tell what it keeps of an append, so it is to keep nothing.
	AppendKeepsNone bool
	// NoRender, if not empty, is why the engines cannot be asked for this prompt's token ids.
	NoRender Reason
	// NoHandles, if not empty, is why P is not given handles now.
	NoHandles Reason
	BlockSize int // tokens
	// Price bounds a P call that carries a handle: it may not take longer than computing the
	// prompt would.
	Price price.Models
	// Unverified takes the handle for right without a look at the prompt. Only the test that shows
	// what verification is for sets it.
	Unverified bool
}

// Rendered reports the token ids of this turn's prompt, as the engine will see it.
type Rendered struct {
	IDs []int32 // nil: it could not be rendered
}

// Awaited reports the end of waiting for a return.
type Awaited struct{ OK bool } // P is prepared

// Taken reports whether the handle is ours alone.
type Taken struct {
	OK bool
	// NoHandles, if not empty, is why P is not given handles any more.
	NoHandles Reason
}

// PrefillDone reports the end of a P call.
type PrefillDone struct {
	Status int // HTTP status, 0 if no answer came
	// Late says that the deadline ended the call.
	Late bool
	// Params are the kv_transfer_params of the reply, nil if null or absent.
	Params []byte
	// Cached is how many prompt tokens P did not compute, nil if P does not say.
	Cached *int
	Prompt int // prompt tokens, 0 if unknown
}

// DecodeBegan reports that D answered 200 and its first event or byte is here, unsent.
type DecodeBegan struct{}

// DecodeFailed reports that D failed, or contradicted what P was told about the prompt, before
// anything was sent to the client.
type DecodeFailed struct {
	Status int // HTTP status, 0 if no answer came
}

// DecodeDone reports the end of D's reply.
type DecodeDone struct {
	Clean bool // the reply is complete, to its end mark
	// Handle is the one D returned, nil if none.
	Handle *kvp.Handle
	// Prompt and Output are the token ids D reported, nil if it did not.
	Prompt, Output []int32
}

// ClientGone reports that nobody waits for the reply any more.
type ClientGone struct{}

func (Start) event()        {}
func (Rendered) event()     {}
func (Taken) event()        {}
func (Awaited) event()      {}
func (PrefillDone) event()  {}
func (DecodeBegan) event()  {}
func (DecodeFailed) event() {}
func (DecodeDone) event()   {}
func (ClientGone) event()   {}

// Action is something the caller has to do.
type Action interface{ action() }

// Render asks for the prompt's token ids.
type Render struct{}

// Await asks to wait until the return in progress is over, at most for so long.
type Await struct{ Deadline time.Duration }

// Take asks for the handle, atomically and for ever.
type Take struct{}

// Form is what a P call carries.
type Form string

// Forms of a P call.
const (
	FormNull    Form = "null"    // no handle: P uses what its own prefix cache has
	FormPull    Form = "pull"    // the handle, cut to what was verified
	FormRelease Form = "release" // the handle with zero tokens: P tells D to free it and pulls nothing
)

// Prefill asks for a P call.
type Prefill struct {
	Form   Form
	Params []byte // kv_transfer_params to send
	// IDs is the exact prompt, nil if P renders it itself. It is always set with FormPull.
	IDs      []int32
	Deadline time.Duration // 0: none of its own
}

// Decode asks for a D call.
type Decode struct {
	Params []byte  // kv_transfer_params to send, nil for none
	IDs    []int32 // the exact prompt, nil if D renders it itself
	Append bool    // D serves the turn alone and keeps its blocks; Params are kvp.AppendForm
	// Brief: nobody waits for the reply. One token is enough to make D take over, and P let go of,
	// the blocks.
	Brief bool
}

// Relay asks to send D's reply to the client as it comes.
type Relay struct{}

// PassOn asks to give the client the failed leg's own reply.
type PassOn struct{ Leg Leg }

// Refuse asks to answer the client with an error of our own: no engine gave one.
type Refuse struct{ Leg Leg }

// Leg is one of a turn's two engine calls.
type Leg string

// The two legs.
const (
	LegPrefill Leg = "prefill"
	LegDecode  Leg = "decode"
)

// Cancel asks to end the leg in progress at once; its outcome is still to be reported.
type Cancel struct{}

// Linger asks to let the D call in progress reach its first event before it is cancelled, within
// reason: its transfer from P is running, and P frees the blocks only when that ends.
type Linger struct{}

// Distrust asks to give P no more handles until it has proved that it can read one.
type Distrust struct{ Why Reason }

// Keep asks to remember the turn, so that the next one finds it.
type Keep struct {
	Handle       *kvp.Handle // clamped to what is known; nil if D holds nothing that could be used
	Seq          []int32     // with a handle: token ids of prompt and reply
	PromptTokens int         // how many of Seq are the prompt
	// Complete: the client has the whole reply.
	Complete bool
}

// Free asks to let D free the blocks of a handle that nobody will use. Otherwise D keeps them until
// its time is over, and other requests may have to wait for room.
type Free struct{ Handle kvp.Handle }

// Done ends the turn.
type Done struct{}

func (Render) action()   {}
func (Await) action()    {}
func (Take) action()     {}
func (Prefill) action()  {}
func (Decode) action()   {}
func (Relay) action()    {}
func (PassOn) action()   {}
func (Refuse) action()   {}
func (Cancel) action()   {}
func (Linger) action()   {}
func (Distrust) action() {}
func (Keep) action()     {}
func (Free) action()     {}
func (Done) action()     {}
